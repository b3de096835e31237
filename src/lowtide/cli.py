"""The `lowtide` command: verbs, help, and what happens when something fails.

Each verb is one file in `shell/verbs`. Nothing here imports torch; a verb that needs it
does so when it runs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lowtide import __version__
from lowtide.errors import LowtideWarning
from lowtide.shell import failures
from lowtide.shell.frame import framed

# The sections of the help: each verb with the examples that its own help shows. A verb
# is the function of this name in the file of this name in `shell/verbs`.
_SECTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "Start here": {
        "demo": ("lowtide demo", "lowtide demo --budget 50% -o demo.html"),
        "run": (
            "lowtide run --budget 6GiB train.py --lr 3e-4",
            "lowtide run --budget 60% -m package.train",
        ),
        "doctor": ("lowtide doctor",),
        "models": ("lowtide models", "lowtide models gpt2"),
    },
    "Plan": {
        "profile": (
            "lowtide profile resnet50 --batch 4 -o resnet.step.json",
            "lowtide profile train.py:make_step",
            "lowtide profile llama -O size=8b --how estimate --device h100",
        ),
        "plan": (
            "lowtide plan resnet.step.json --budget 60% -o resnet.plan.json",
            "lowtide plan train.py:make_step --max-overhead 10%",
            "lowtide plan tiny_gpt --budget 3MiB --planner all",
        ),
        "sweep": ("lowtide sweep resnet.step.json", "lowtide sweep vit -o vit.svg"),
        "verify": (
            "lowtide verify train.py:make_step --plan gpt.plan.json",
            "lowtide verify resnet18 --batch 2 --budget 70%",
        ),
        "fits": (
            "lowtide fits gpt2 --batch 16 --device a100-40gb",
            "lowtide fits train.py:make_step --device h100 --optimizer adamw",
        ),
    },
    "Look": {
        "report": ("lowtide report gpt.plan.json -o gpt.html",),
        "explain": (
            "lowtide explain gpt.plan.json blocks.3",
            "lowtide explain gpt.step.json --floor",
        ),
        "diff": ("lowtide diff old.plan.json new.plan.json",),
        "export": ("lowtide export gpt.plan.json --to memory_viz",),
    },
    "Compare": {
        "batch": (
            "lowtide batch resnet18 --batches 4,8,16,32 --budget 1GiB -o batch.png",
        ),
        "bench": (
            "lowtide bench tiny_gpt",
            "lowtide bench train.py:make_step --budgets theirs,floor -o bench.png",
        ),
        "planners": ("lowtide planners", "lowtide planners auto"),
    },
}


VERBS = {
    section: {
        getattr(import_module(f"lowtide.shell.verbs.{name}"), name): examples
        for name, examples in verbs.items()
    }
    for section, verbs in _SECTIONS.items()
}


class _Verbs(TyperGroup):
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for section, verbs in VERBS.items():
            with formatter.section(section):
                formatter.write_dl(
                    [(v.__name__, (v.__doc__ or "").splitlines()[0]) for v in verbs]
                )


app = typer.Typer(
    name="lowtide",
    cls=_Verbs,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="New here? Run `lowtide demo`: two minutes, no data needed.",
)
for _verbs in VERBS.values():
    for _verb, _examples in _verbs.items():
        _lines = "".join(f"\n  $ {line}" for line in _examples)
        _word = "Examples" if len(_examples) > 1 else "Example"
        app.command(
            name=_verb.__name__,
            epilog=f"\b\n{_word}:{_lines}",
            # What follows the script is the script's.
            context_settings={"allow_interspersed_args": _verb.__name__ != "run"},
        )(framed(_verb))


def _version(wanted: bool) -> None:
    if wanted:
        print(f"lowtide {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say more on standard error.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Train PyTorch models under a memory budget, with bitwise the same gradients."""
    if context.invoked_subcommand != "run":  # a script has listeners of its own
        _listen(verbose)


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit with its code."""
    words = sys.argv[1:] if arguments is None else arguments
    sys.exit(_flush(_run(words or ["--help"])))


# The base of what typer raises on words that it cannot make sense of.
_UsageError: type[Exception] = next(
    c for c in typer.BadParameter.mro() if c.__name__ == "ClickException"
)


def _run(words: list[str]) -> int:
    try:
        done = app(words, prog_name="lowtide", standalone_mode=False)
        if done == failures.INTERRUPTED:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
        return done if isinstance(done, int) else failures.OK
    except BrokenPipeError:
        return _hang_up()
    except _UsageError as error:
        return _show_usage(error)
    except typer.Abort:
        return failures.show_error(KeyboardInterrupt())
    except (Exception, KeyboardInterrupt) as error:
        with contextlib.suppress(BrokenPipeError):
            return failures.show_error(error, as_json="--json" in words)
        return _hang_up()


def _show_usage(error: Any) -> int:
    failures.say("error", error.format_message())
    path = getattr(getattr(error, "ctx", None), "command_path", "lowtide")
    print(f"See `{path} --help` for what it takes.", file=sys.stderr)
    return failures.USAGE


def _flush(code: int) -> int:
    """Write out what is left: only now does a full disk or a closed pipe show."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _hang_up()
    except OSError as error:
        failures.say("error", f"cannot write to standard output: {error.strerror}")
        _drop_output()
        return code or failures.FAILURE
    return code


def _hang_up() -> int:
    """The reader of our output has gone: stop without a word, as other tools do."""
    _drop_output()
    return 141


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        label = "warning" if record.levelno >= logging.WARNING else "info"
        failures.say(label, record.getMessage())


def _listen(verbose: bool) -> None:
    """Show what the library logs and warns of, each as one line."""
    log = logging.getLogger("lowtide")
    log.handlers[:] = [_Handler()]
    log.setLevel(logging.INFO if verbose else logging.WARNING)
    log.propagate = False
    if not verbose:
        # Other packages' warnings are for those who run them, not for this command.
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", LowtideWarning)
    warnings.showwarning = lambda message, *_, **__: failures.say(
        "warning", str(message)
    )
