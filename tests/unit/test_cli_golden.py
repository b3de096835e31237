"""What the verbs print on saved steps, word for word; these need no torch.

The verbs that run a model are in `tests/real/test_cli_models.py`.
"""

import pytest

from lowtide import StepGraph
from tests.report_steps import SMALL, gpt
from tests.shell import check_golden, run, transcript

_GPT = "gpt.step.json --planner mu_two"
COMMANDS = {
    "profile": (
        "profile gpt.step.json --no-floor --plot gpt.svg",
        "profile small.step.json --depth 1 --csv small.csv --csv-of ops",
        "profile small.step.json --csv small.csv",
    ),
    "plan": (
        f"plan {_GPT} --budget 70% --time-limit 1",
        f"plan {_GPT} --max-overhead 10% -o least.plan.json",
        "plan small.step.json --budget '50 B' --planner mu_two",
        "plan small.step.json",
    ),
    "sweep": (
        f"sweep {_GPT} --budgets 6",
        f"sweep {_GPT} --budgets 3MiB,80%,1MiB -o gpt.json",
        f"sweep {_GPT} -o gpt.docx",
    ),
    "report": (
        "report gpt.plan.json",
        "report gpt.plan.json",
        "report small.step.json --text",
    ),
    "explain": (
        "explain gpt.plan.json layers.1.mlp",
        "explain gpt.plan.json",
        "explain small.step.json --floor",
        "explain small.step.json",
    ),
    "diff": (
        "diff gpt.plan.json other.plan.json",
        "diff small.step.json gpt.step.json -o diff.html",
    ),
    "export": (
        "export gpt.plan.json",
        "export gpt.plan.json --to csv -o gpt.csv --json",
        "export small.step.json --to excel",
    ),
    "planners": ("planners", "planners keep_all"),
    "models": ("models", "models mlp"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with two steps, and two plans of one of them."""
    path = tmp_path_factory.mktemp("golden")
    StepGraph.from_text(SMALL, name="small").save(path / "small.step.json")
    gpt(2).save(path / "gpt.step.json")
    for name, budget in (("gpt", "70%"), ("other", "90%")):
        words = ("gpt.step.json", "--planner", "mu_two", "--budget", budget)
        assert run("plan", *words, "-o", f"{name}.plan.json", cwd=path).code == 0
    return path


@pytest.mark.parametrize("verb", COMMANDS)
def test_golden_output(verb, folder):
    commands = (f"{verb} --help", *COMMANDS[verb])
    check_golden(f"cli_{verb}.txt", transcript(*commands, cwd=folder))


def test_golden_help(tmp_path):
    check_golden("cli_help.txt", run("--help", cwd=tmp_path, COLUMNS="80").out)
