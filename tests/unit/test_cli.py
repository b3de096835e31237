"""The command line on saved steps, which need no torch.

Each command runs as its own process. What they print, word for word, is in
`test_cli_golden.py`.
"""

import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from lowtide import Plan, StepGraph
from lowtide.cli import VERBS
from lowtide.errors import InvalidArgumentError
from lowtide.shell.target import Target
from tests.report_steps import SMALL, gpt
from tests.shell import run, run_in_terminal, start

NAMES = (
    "demo run doctor models profile fits plan sweep verify bench batch report explain "
    "diff export planners"
).split()


@pytest.fixture
def folder(tmp_path):
    """A folder with a step that plans at once, and one that does not."""
    StepGraph.from_text(SMALL, name="small").save(tmp_path / "small.step.json")
    gpt(2).save(tmp_path / "gpt.step.json")
    return tmp_path


@pytest.fixture
def planned(folder):
    done = run(*PLAN, "--budget", "70%", "-o", "gpt.plan.json", cwd=folder)
    assert done.code == 0, done.err
    return folder


PLAN = ("plan", "gpt.step.json", "--planner", "mu_two", "--time-limit", "1")


# Help.


def test_the_bare_command_shows_help(tmp_path):
    done = run(cwd=tmp_path)
    assert done.code == 0
    assert done.err == ""
    assert done.out == run("--help", cwd=tmp_path).out


def test_every_verb_of_the_contract_is_there():
    assert set(NAMES) == {verb.__name__ for verbs in VERBS.values() for verb in verbs}


@pytest.mark.parametrize("verb", NAMES)
def test_help_of_every_verb_shows_an_example(verb, tmp_path):
    done = run(verb, "--help", cwd=tmp_path)
    assert done.code == 0
    assert f"$ lowtide {verb}" in done.out
    assert "--json" in done.out


def test_examples_in_help_use_options_that_exist():
    pairs = (pair for verbs in VERBS.values() for pair in verbs.items())
    for verb, examples in pairs:
        for example in examples:
            assert example.split()[:2] == ["lowtide", verb.__name__]


def test_help_and_completion_load_no_torch():
    code = (
        "import sys\n"
        "from lowtide import cli\n"
        "from lowtide.shell import complete\n"
        "assert 'numpy' not in sys.modules\n"
        "cli._run(['--help']); cli._run(['plan', '--help']); cli._run(['models'])\n"
        "assert 'gpt2' in complete.targets('gp')\n"
        "assert 'auto' in complete.planners()\n"
        "assert 'a100-80gb' in complete.devices()\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_shell_completion_offers_targets(folder):
    asked = {
        "_LOWTIDE_COMPLETE": "complete_bash",
        "COMP_WORDS": "lowtide plan g",
        "COMP_CWORD": "2",
    }
    offered = run(cwd=folder, **asked).out.split()
    assert "gpt.step.json" in offered
    assert "gpt2" in offered


def test_a_wrong_verb_is_a_usage_error_with_a_suggestion(tmp_path):
    done = run("plam", cwd=tmp_path)
    assert done.code == 2
    assert "plan" in done.err
    assert "lowtide --help" in done.err
    assert done.out == ""


def test_version(tmp_path):
    assert run("--version", cwd=tmp_path).out.startswith("lowtide 0.")


# Verbs on saved files.


def test_profile_draws_and_fits_a_narrow_terminal(folder):
    words = ("profile", "gpt.step.json", "--no-floor")
    assert run(*words, "--plot", "gpt.svg", cwd=folder).code == 0
    assert "<svg" in (folder / "gpt.svg").read_text()
    # Where the table does not fit, the narrower form of the report is shown.
    narrow = run_in_terminal(*words, cwd=folder, columns=60).plain
    assert "Alive at the peak" in narrow
    body = narrow.split("\nnext: ")[0].splitlines()
    assert max(map(len, body)) <= 60


def test_all_planners_can_be_compared(folder):
    words = ("small.step.json", "--budget", "100 B", "--planner", "all")
    done = run("plan", *words, "--json", cwd=folder)
    assert done.code == 0, done.err
    # Budget 100 forces exactly one more run of f, which takes 1 s of 6 s.
    assert Plan.from_dict(json.loads(done.out)).seconds == 7.0
    text = run("plan", *words, cwd=folder).out
    assert text.count("<- chosen") == 1
    assert "too high" in text  # keep_all


def test_least_peak_for_extra_time(folder):
    words = ("plan", "small.step.json", "--max-overhead", "20%", "--json")
    plan = Plan.from_dict(json.loads(run(*words, cwd=folder).out))
    assert plan.seconds <= 1.2 * 6.0
    assert plan.peak_bytes < 112


def test_report_explain_diff_and_export_find_the_step_beside_the_plan(planned):
    done = run("report", "gpt.plan.json", cwd=planned)
    assert done.code == 0, done.err
    assert "saved  gpt.html" in done.out
    assert (planned / "gpt.html").read_text().startswith("<!doctype html>")
    done = run("explain", "gpt.plan.json", "layers.1", cwd=planned)
    assert done.code == 0, done.err
    assert "with 5 % more budget" in done.out
    other = run(*PLAN, "--budget", "90%", "-o", "other.plan.json", cwd=planned)
    assert other.code == 0
    done = run("diff", "gpt.plan.json", "other.plan.json", cwd=planned)
    assert done.code == 0, done.err
    assert "other.plan.json" in done.out
    for form, name in (("chrome", "gpt.trace.json"), ("csv", "gpt.csv")):
        done = run("export", "gpt.plan.json", "--to", form, cwd=planned)
        assert done.code == 0, done.err
        assert (planned / name).stat().st_size > 1000


def test_a_plan_without_its_step_says_what_to_do(planned):
    (planned / "gpt.step.json").rename(planned / "away.json")
    done = run("explain", "gpt.plan.json", "layers.1", cwd=planned)
    assert done.code == 2
    assert "Pass --step FILE" in done.err
    words = ("explain", "gpt.plan.json", "layers.1", "--step", "away.json")
    assert run(*words, cwd=planned).code == 0


@pytest.mark.parametrize(
    "words",
    [
        ("profile", "small.step.json"),
        ("plan", "small.step.json", "--budget", "90%"),
        ("sweep", "small.step.json", "--budgets", "3"),
        ("report", "small.step.json"),
        ("explain", "small.step.json", "--floor"),
        ("diff", "small.step.json", "small.step.json"),
        ("export", "small.step.json", "--to", "csv"),
        ("planners",),
        ("planners", "auto"),
        ("models",),
        ("models", "gpt2"),
    ],
    ids=" ".join,
)
def test_json_and_next_command(words, folder):
    text = run(*words, cwd=folder)
    assert text.code == 0, text.err
    assert text.lines[-1].startswith("next: lowtide ")
    again = ("--force",) if words[0] in ("export", "report") else ()
    data = run(*words, "--json", *again, cwd=folder)
    assert data.code == 0, data.err
    assert json.loads(data.out)


def test_errors_are_json_as_well(folder):
    words = ("plan", "small.step.json", "--budget", "50 B", "--json")
    done = run(*words, cwd=folder)
    error = json.loads(done.out)["error"]
    assert (done.code, error["exit_code"]) == (3, 3)
    assert error["type"] == "BudgetTooSmallError"
    assert error["budget_bytes"] == 50
    assert error["floor_bytes"] > 50


# Wrong words.


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan", "small.step.json"), "neither --budget nor --max-overhead"),
        (("plan", "small.step.json", "--budget", "0.5"), "the unit is missing"),
        (("plan", "small.step.json", "--budget", "6 XB"), "'XB' is not a unit"),
        (("plan", "small.step.json", "--budget", "-1GiB"), "not above zero"),
        (("plan", "small.step.json", "--budget", "0%"), "not above zero"),
        (("plan", "small.step.json", "--max-overhead", "x"), "not a percentage"),
        (("plan", "missing.step.json", "--budget", "60%"), "there is no such file"),
        (("plan", "resnet51", "--budget", "60%"), "did you mean resnet"),
        (("plan", "train.py", "--budget", "60%"), "which function makes the step"),
        (("plan", "missing.py:f", "--budget", "60%"), "there is no such file"),
        (("plan", "no_such.module:f", "--budget", "60%"), "no module no_such"),
        (
            ("plan", "small.step.json", "--budget", "60%", "--planner", "auot"),
            "'auto' is close",
        ),
        (("plan", "small.step.json", "--budget", "9%", "--batch", "4"), "saved step"),
        (("sweep", "small.step.json", "-o", "x.docx"), "End the name in .html"),
        (("export", "small.step.json", "--to", "excel"), "Use one of: chrome"),
        (("batch", "small.step.json"), "one batch size"),
        (("batch", "mlp", "--batches", "4,x"), "not a list of sizes"),
        (("verify", "mlp"), "neither --plan nor --budget"),
        (("verify", "small.step.json"), "holds no model"),
        (("explain", "small.step.json"), "this is a step, and a plan is needed"),
        (("bench",), "Missing argument 'TARGET'"),
        (("report", "missing.plan.json"), "there is no such file"),
        (("plan",), "Missing argument 'TARGET'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_usage_errors_say_what_to_do(words, said, folder):
    done = run(*words, cwd=folder)
    assert done.code == 2, done.err
    assert said in done.err
    assert "Traceback" not in done.err
    assert done.out == ""


def test_a_damaged_file_is_a_failure(folder):
    (folder / "bad.step.json").write_text('{"lowtide": "step"')
    done = run("plan", "bad.step.json", "--budget", "60%", cwd=folder)
    assert done.code == 1
    assert "is not JSON" in done.err
    (folder / "odd.step.json").write_text("[1, 2]")
    done = run("profile", "odd.step.json", cwd=folder)
    assert done.code == 1
    assert "neither a step nor a plan" in done.err


def test_targets_are_told_apart():
    assert Target("gpt2", 4, ["layers=2"]).words == (
        "gpt2",
        "--batch",
        "4",
        "--option",
        "layers=2",
    )
    assert Target("a/b.py:f").kind == "function"
    assert Target("x.plan.json").kind == "file"
    assert Target("x.plan.json").name == "x"
    with pytest.raises(InvalidArgumentError, match="not KEY=VALUE"):
        Target("gpt2", None, ["layers"])


# Files.


def test_nothing_is_overwritten_without_force(planned):
    words = (*PLAN, "--budget", "95%", "-o", "gpt.plan.json")
    before = (planned / "gpt.plan.json").read_text()
    assert run(*words, cwd=planned).code == 0  # a plan over a plan
    assert (planned / "gpt.plan.json").read_text() != before
    (planned / "gpt.plan.json").write_text("a thesis")
    done = run(*words, cwd=planned)
    assert done.code == 1
    assert "the file exists" in done.err
    assert "planning" not in done.err  # it says so before the work
    assert (planned / "gpt.plan.json").read_text() == "a thesis"
    assert run(*words, "--force", cwd=planned).code == 0


def test_a_folder_that_is_missing_or_may_not_be_written(folder):
    words = ("plan", "small.step.json", "--budget", "90%", "-o")
    done = run(*words, "nowhere/x.plan.json", cwd=folder)
    assert done.code == 1
    assert "there is no folder nowhere" in done.err
    locked = folder / "locked"
    locked.mkdir(mode=0o555)
    # To the superuser no folder of ours is locked; the kernel's own are.
    path = "/proc/x.plan.json" if os.geteuid() == 0 else "locked/x.plan.json"
    done = run(*words, path, cwd=folder)
    assert done.code == 1
    assert f"cannot write {path}" in done.err
    assert "Traceback" not in done.err


def test_a_full_device(folder):
    with open("/dev/full", "w") as full:
        done = run("planners", cwd=folder, stdout=full)
    assert done.code == 1
    assert "No space left on device" in done.err
    assert "Traceback" not in done.err
    words = ("plan", "small.step.json", "--budget", "90%", "-o", "/dev/full")
    done = run(*words, cwd=folder)
    assert done.code == 1
    assert "cannot write /dev/full" in done.err


def test_a_disk_that_fills_up_leaves_nothing_behind(folder):
    before = sorted(path.name for path in folder.iterdir())
    limit = 2000
    done = subprocess.run(
        [sys.executable, "-m", "lowtide", "report", "gpt.step.json"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert done.returncode == 1
    assert "cannot write gpt.html" in done.stderr
    assert sorted(path.name for path in folder.iterdir()) == before


# Terminals, pipes, interruptions.


@pytest.mark.parametrize("columns", [40, 120])
def test_a_terminal_gets_color_and_lines_that_fit(folder, columns):
    words = ("sweep", "gpt.step.json", "--planner", "mu_two", "--budgets", "4")
    done = run_in_terminal(*words, cwd=folder, columns=columns)
    assert done.code == 0
    assert "\x1b[1m" in done.out  # bold
    body, command = done.plain.rstrip().rsplit("\n", 1)
    assert command.startswith("next: lowtide plan gpt.step.json --budget ")
    assert max(map(len, body.splitlines())) <= columns
    assert "<- knee" in done.plain or columns == 40


def test_progress_is_a_bar_on_a_terminal(folder):
    words = ("plan", "small.step.json", "--budget", "90%")
    done = run_in_terminal(*words, cwd=folder)
    assert "planning with auto" in done.out
    assert "━" in done.out
    assert "at most" not in done.plain  # the plain lines are for pipes


def test_no_color(folder):
    words = ("profile", "small.step.json")
    done = run_in_terminal(*words, cwd=folder, NO_COLOR="1")
    assert done.code == 0
    assert "\x1b[3" not in done.out
    assert "\x1b[" not in run(*words, cwd=folder).out


def test_a_narrow_terminal_shows_errors_in_full(folder):
    words = ("plan", "small.step.json", "--budget", "50 B")
    done = run_in_terminal(*words, cwd=folder, columns=36)
    assert done.code == 3
    message, _, _ = done.plain.partition("\nnext: ")  # on one line, to be copied
    assert max(map(len, message.splitlines())) <= 36
    assert "lowtide explain" in " ".join(message.split())


def test_a_reader_that_leaves_is_not_an_error(folder):
    shell = f"{sys.executable} -m lowtide profile gpt.step.json --json | head -c 10"
    done = subprocess.run(
        shell, shell=True, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.stdout == '{\n "lowtid'
    assert done.stderr == ""


@pytest.mark.slow
def test_an_interrupted_search_gives_the_best_plan_so_far(tmp_path):
    gpt(12).save(tmp_path / "gpt.step.json")
    words = ("gpt.step.json", "--budget", "45%", "--time-limit", "120")
    process = start("plan", *words, "-o", "gpt.plan.json", cwd=tmp_path)
    assert process.stderr is not None
    assert "planning with auto" in process.stderr.readline()
    time.sleep(6)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "interrupted: this is the best plan of auto so far" in err
    assert "saved  gpt.plan.json" in out
    plan = Plan.load(tmp_path / "gpt.plan.json")
    assert plan.proof.stopped_by == "interrupted"
    assert plan.peak_bytes <= plan.budget_bytes


def test_an_interrupted_planner_leaves_the_plans_of_those_before_it(folder):
    code = (
        "import sys\n"
        "from lowtide import cli\n"
        "import lowtide.shell.verbs.plan as verb\n"
        "attempt = verb._attempt\n"
        "def interrupted(step, name, *rest):\n"
        "    if name == 'auto':\n"
        "        raise KeyboardInterrupt\n"
        "    return attempt(step, name, *rest)\n"
        "verb._attempt = interrupted\n"
        "cli.main(sys.argv[1:])\n"
    )
    words = ("plan", "small.step.json", "--budget", "100%", "--planner")
    python = (sys.executable, "-c", code, *words)
    settings = {"cwd": folder, "capture_output": True, "text": True}
    done = subprocess.run([*python, "keep_all,auto"], **settings)
    assert done.returncode == 0, done.stderr
    assert "interrupted: this is the best plan found so far" in done.stderr
    assert "planned by keep_all" in done.stdout
    assert subprocess.run([*python, "auto"], **settings).returncode == 130


def test_an_interruption_elsewhere_exits_with_130(tmp_path):
    (tmp_path / "slow.py").write_text(
        "import sys, time\n"
        "def make():\n"
        "    print('here', file=sys.stderr, flush=True)\n"
        "    time.sleep(100)\n"
    )
    words = ("plan", "slow.py:make", "--budget", "60%", "-o", "x.plan.json")
    process = start(*words, cwd=tmp_path)
    assert process.stderr is not None
    assert process.stderr.readline() == "here\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; nothing was written" in err
    assert "Traceback" not in err
    assert out == ""
    assert not list(tmp_path.glob("*.json"))


# TARGETs that fail before torch is needed.


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "def make():\n    return 1 / 0\n",
            "target.py:make raised ZeroDivisionError: division by zero. At "
            "target.py:2: `return 1 / 0`.",
        ),
        (
            "import no_such_package\n",
            "raised ModuleNotFoundError: No module named 'no_such_package'. At "
            "target.py:1",
        ),
        ("def make(:\n", "raised SyntaxError: invalid syntax"),
    ],
)
def test_a_target_that_raises_shows_the_users_error(body, said, tmp_path):
    (tmp_path / "target.py").write_text(body)
    done = run("profile", "target.py:make", cwd=tmp_path)
    assert done.code == 1
    assert said in done.err
    assert "Traceback" not in done.err


def test_a_function_that_does_not_take_a_batch(tmp_path):
    (tmp_path / "target.py").write_text("def make():\n    return 3\n")
    done = run("profile", "target.py:make", "--batch", "4", cwd=tmp_path)
    assert done.code == 2
    assert "the function takes no argument 'batch'" in done.err
    done = run("profile", "target.py:other", cwd=tmp_path)
    assert done.code == 2
    assert "it defines make" in done.err


# What comes next.


def next_words(done):
    """The command that a verb ends with, without `lowtide`."""
    assert done.code == 0, done.err
    return shlex.split(done.lines[-1].removeprefix("next: "))[1:]


def test_the_next_command_of_profile_is_feasible_and_keeps_the_flags(folder):
    # The floor of this step is above 60 %: an input that every plan has to hold.
    text = SMALL.replace("resident x 8", "resident x 800")
    StepGraph.from_text(text, name="full").save(folder / "full.step.json")
    words = next_words(run("profile", "full.step.json", cwd=folder))
    assert words[:2] == ["plan", "full.step.json"]
    assert words[2:] != ["--budget", "60%"]
    assert run(*words, cwd=folder).code == 0


def test_the_next_command_of_plan_and_sweep_keeps_planner_and_limit(folder):
    words = next_words(run(*PLAN, "--budget", "70%", cwd=folder))
    assert words[: len(PLAN) + 2] == [
        *("plan", "gpt.step.json", "--budget", "70%"),
        *("--planner", "mu_two", "--time-limit", "1"),
    ]
    sweep = ("sweep", "gpt.step.json", "--planner", "mu_two", "--budgets", "3")
    assert next_words(run(*sweep, cwd=folder))[-2:] == ["--planner", "mu_two"]


def test_the_next_command_names_the_step_that_was_named(planned):
    (planned / "apart").mkdir()
    (planned / "gpt.step.json").rename(planned / "apart" / "s.step.json")
    step = ("--step", "apart/s.step.json")
    for words in (
        ("export", "gpt.plan.json", *step),
        ("report", "gpt.plan.json", *step),
        ("explain", "gpt.plan.json", "head", *step),
    ):
        assert list(step) == next_words(run(*words, cwd=planned))[2:4]


def test_plan_says_how_to_train_with_it(folder):
    done = run(*PLAN, "--budget", "70%", cwd=folder)
    assert "train with it: lowtide.optimize(model, budget='70%')\n" in done.out
    done = run(*PLAN, "--budget", "70%", "-o", "g.plan.json", cwd=folder)
    call = "lowtide.apply(model, lowtide.Plan.load('g.plan.json'))"
    assert f"train with it: {call}\n" in done.out


def test_plan_says_that_the_step_already_fits(folder):
    done = run("plan", "small.step.json", "--budget", "1G", cwd=folder)
    assert "The step already fits" in done.out


def test_plan_and_report_say_the_same_saving(planned):
    words = (*PLAN, "--budget", "70%")
    headline = run(*words, cwd=planned).lines[1]
    assert headline.startswith("The peak falls from")
    assert run("report", "gpt.plan.json", "--text", cwd=planned).lines[1] == headline


@pytest.mark.slow
def test_a_budget_that_is_too_small_names_one_that_fits(folder):
    done = run("plan", "gpt.step.json", "--budget", "1MiB", cwd=folder)
    assert done.code == 3
    assert "MiB, shrink the batch" in done.err
    last = done.err.splitlines()[-1]
    words = shlex.split(last.removeprefix("next: lowtide "))
    assert words[:3] == ["plan", "gpt.step.json", "--budget"]
    assert run(*words, cwd=folder).code == 0


@pytest.mark.slow
def test_profile_shows_the_floor_at_any_width(folder):
    for columns in (60, 120):
        done = run_in_terminal("profile", "gpt.step.json", cwd=folder, columns=columns)
        assert re.search(r"^floor +1\.\d+ MiB +the lowest peak found", done.plain, re.M)


@pytest.mark.slow
def test_a_rerun_replaces_its_own_files_and_no_others(planned):
    for words in (
        ("export", "gpt.plan.json", "--to", "memory_viz", "-o", "gpt.pickle"),
        ("report", "gpt.plan.json", "-o", "gpt.txt"),
        ("report", "gpt.plan.json", "--plots", "charts", "--form", "pdf"),
        ("report", "gpt.plan.json", "--plots", "charts", "--form", "png"),
        ("report", "gpt.plan.json", "--plots", "charts", "--form", "svg"),
    ):
        for _ in range(2):
            done = run(*words, cwd=planned)
            assert done.code == 0, done.err
    (planned / "charts" / "tide.png").write_bytes(b"\x89PNG, somebody's holiday")
    done = run(*words[:-1], "png", cwd=planned)
    assert done.code == 1
    assert "cannot tell that it wrote it" in done.err


# Whether it fits.


@pytest.mark.slow
def test_fits_answers_by_exit_code(folder):
    step = StepGraph.load(folder / "gpt.step.json")
    device = ("gpt.step.json", "--device", "a100-40gb", "--json")
    easy = run("fits", *device, cwd=folder)
    answer = json.loads(easy.out)
    assert (easy.code, answer["fits"], answer["overhead"]) == (0, True, 0.0)
    state = 2 * sum(s.nbytes for s in step.storages if s.kind == "parameter")
    assert answer["needed_bytes"] == step.eager_peak_bytes + state
    # Room for the state and nine tenths of the peak: only a plan fits.
    left = 40 * 10**9 - state - int(0.9 * step.eager_peak_bytes)
    tight = run("fits", *device, "--reserve", f"{left} B", cwd=folder)
    answer = json.loads(tight.out)
    assert (tight.code, answer["fits"]) == (0, True)
    assert answer["overhead"] > 0
    assert answer["peak_bytes"] <= 40 * 10**9 - left
    full = run("fits", *device, "--reserve", "39.999 GB", cwd=folder)
    assert (full.code, json.loads(full.out)["fits"]) == (3, False)


def test_fits_refuses_an_unknown_optimizer(folder):
    done = run("fits", "small.step.json", "--optimizer", "lion", cwd=folder)
    assert done.code == 2
    assert "adamw" in done.err


# Estimates for another device.

ASSUMED = (
    "Times are estimated for a100-80gb. Graph, kernels and their scratch are those of "
    "{}, where the step was captured."
)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param((*PLAN, "--budget", "70%"), id="plan"),
        pytest.param(("sweep", *PLAN[1:], "--budgets", "2"), id="sweep"),
        pytest.param(("fits", "gpt.step.json", "--device", "a100-80gb"), id="fits"),
    ],
)
def test_what_an_estimate_takes_for_granted_is_printed(words, folder):
    def printed() -> str:
        done = run(*words, cwd=folder)
        assert done.code == 0, done.err
        return " ".join(done.out.split())

    file = folder / "gpt.step.json"
    step = StepGraph.load(file)
    assert "Times are estimated" not in printed()
    facts = {**step.facts, "how": "estimate", "costs_of": "a100-80gb"}
    replace(step, facts=facts).save(file, force=True)
    assert ASSUMED.format(step.device or "another device") in printed()


def test_batch_prints_what_its_estimate_takes_for_granted(tmp_path):
    sizes = ("batch", "mlp", "--batches", "2,4", "--no-largest", "--time-limit", "0.1")
    done = run(*sizes, "--how", "estimate", "--device", "a100-80gb", cwd=tmp_path)
    assert done.code == 0, done.err
    assert ASSUMED.format("cpu") in " ".join(done.out.split())
