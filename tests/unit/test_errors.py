import copy
import pickle

import pytest

from lowtide import errors

GIB = 1024**3

# Every error, made as lowtide makes it, with the words its message must carry: what was
# asked, what was found, what to do.
EXAMPLES = [
    (
        errors.InvalidArgumentError(
            'planner="chan"', "no planner has this name", "Use one of: auto, dtr"
        ),
        ValueError,
        ['planner="chan": ', "no planner has this name.", "Use one of: auto, dtr."],
    ),
    (
        errors.BudgetFormatError("6 XB", "'XB' is not a unit"),
        ValueError,
        ["budget '6 XB'", "'XB' is not a unit.", "Accepted: ", '"6 GiB"', '"60%"'],
    ),
    (
        errors.BudgetTooSmallError(2 * GIB, 3 * GIB, "parameters 1.00 GiB"),
        ValueError,
        [
            "budget 2.00 GiB is below 3.00 GiB, the lowest peak found",
            "(held by parameters 1.00 GiB)",
            "Raise the budget to 3072.0MiB",
            "shrink the batch",
            "`lowtide explain TARGET --floor`",
        ],
    ),
    (
        errors.NoTrainingGraphError(
            "lowtide.optimize(Sequential)",
            "torch does not use the compiled form of this container",
            "Wrap the container in a module of your own",
        ),
        RuntimeError,
        [
            "lowtide.optimize(Sequential): 0 training graphs arrived",
            "Cause: torch does not use the compiled form of this container.",
            "Wrap the container in a module of your own.",
        ],
    ),
    (
        errors.CaptureError(
            "data-dependent branch", op="aten.item", location="train.py:12"
        ),
        RuntimeError,
        [
            "cannot capture the training step at op aten.item (train.py:12)",
            "data-dependent branch.",
            "Move the part that depends on data",
        ],
    ),
    (
        errors.StepFormatError("line 3: unknown flag 'randon'"),
        ValueError,
        ["cannot be read: line 3: unknown flag 'randon'.", "Write it again", "`save`"],
    ),
    (
        errors.PlanMismatchError("aaaa", "bbbb", "op 17: add against mul"),
        ValueError,
        [
            "plan is for step aaaa",
            "step at hand is bbbb",
            "First difference: op 17: add against mul.",
            "plan again with lowtide.plan",
        ],
    ),
    (
        errors.InvalidScheduleError(4, "storage 7 is not alive", "Run(3)"),
        ValueError,
        ["item 4 (Run(3))", "storage 7 is not alive.", "Change this item"],
    ),
    (
        errors.VerificationError(
            "gradient of fc.weight",
            "0.5 against 0.25 at index (0, 1)",
            predicted_peak_bytes=GIB,
            measured_peak_bytes=2 * GIB,
        ),
        RuntimeError,
        [
            "gradient of fc.weight: 0.5 against 0.25 at index (0, 1).",
            "predicted 1.00 GiB, measured 2.00 GiB",
            "LOWTIDE_DISABLE=1",
        ],
    ),
    (
        errors.SolverUnavailableError("highspy", "No module named 'highspy'"),
        ImportError,
        [
            "solver highspy cannot be used",
            "No module named 'highspy'.",
            "`pip install highspy`",
        ],
    ),
    (
        errors.MissingPackageError(
            "matplotlib", "pictures are drawn with it", "pip install lowtide[plot]"
        ),
        ImportError,
        [
            "matplotlib is not installed: ",
            "pictures are drawn with it.",
            "`pip install lowtide[plot]`.",
        ],
    ),
    (
        errors.RankError(3, "its budget is too small"),
        RuntimeError,
        ["rank 3 cannot go on", "its budget is too small.", "on all ranks alike."],
    ),
    (
        errors.OutputError("out.html", "the file exists", "Pass force=True"),
        OSError,
        ["cannot write out.html: ", "the file exists.", "Pass force=True."],
    ),
    (
        errors.TargetError(
            "train.py:make",
            "ZeroDivisionError: division by zero",
            location="train.py:12",
            code="x = 1 / 0",
        ),
        RuntimeError,
        [
            "train.py:make raised ZeroDivisionError: division by zero.",
            "At train.py:12: `x = 1 / 0`.",
            "Run it by itself",
        ],
    ),
    (
        errors.UnsupportedTorchError(
            "partition_fn got unknown arguments ['x']", "9.0.0"
        ),
        RuntimeError,
        [
            "cannot run on torch 9.0.0",
            "unknown arguments ['x'].",
            "torch 2.13 and 2.15",
            "LOWTIDE_DISABLE=1",
        ],
    ),
]
IDS = [type(error).__name__ for error, _, _ in EXAMPLES]


@pytest.mark.parametrize(("error", "also", "words"), EXAMPLES, ids=IDS)
def test_the_message_says_what_was_asked_found_and_to_do(error, also, words):
    assert isinstance(error, errors.LowtideError)
    assert isinstance(error, also)
    assert [word for word in words if word not in str(error)] == []
    assert ".." not in str(error)
    assert "  " not in str(error)
    assert str(error).endswith(".")


def _through_pickle(error):
    return pickle.loads(pickle.dumps(error))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, _through_pickle])
@pytest.mark.parametrize(("error", "also", "words"), EXAMPLES, ids=IDS)
def test_errors_survive_a_worker_process(error, also, words, duplicate):
    twin = duplicate(error)
    assert type(twin) is type(error)
    assert str(twin) == str(error)
    assert twin.__dict__ == error.__dict__


def test_every_error_has_an_example():
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.LowtideError)
    }
    assert defined - {"LowtideError"} == set(IDS)


def test_facts_are_attributes():
    error = errors.BudgetTooSmallError(2, 3, "gradients")
    assert (error.budget_bytes, error.floor_bytes, error.blame) == (2, 3, "gradients")
    error = errors.InvalidScheduleError(4, "freed twice", "Free(1)")
    assert (error.index, error.reason, error.item) == (4, "freed twice", "Free(1)")
    error = errors.PlanMismatchError("aaaa", "bbbb")
    assert (error.plan_fingerprint, error.step_fingerprint) == ("aaaa", "bbbb")


def test_nearly_equal_sizes_are_told_apart():
    message = str(errors.BudgetTooSmallError(GIB - 1, GIB))
    assert "budget 1.00 GiB (1073741823 bytes) is below 1.00 GiB" in message
    assert "below 1.00 GiB (1073741824 bytes)" in message


def test_optional_parts_may_be_left_out():
    assert "(held by" not in str(errors.BudgetTooSmallError(1, 2))
    assert "First difference" not in str(errors.PlanMismatchError("a", "b"))
    assert "Peak:" not in str(errors.VerificationError("loss", "1.0 against 2.0"))
    assert " at op" not in str(errors.CaptureError("no graph"))
    assert "this torch" in str(errors.UnsupportedTorchError("too new"))
    assert "requires a gradient" in str(errors.NoTrainingGraphError("optimize(m)"))
    assert "item 2:" in str(errors.InvalidScheduleError(2, "output never made"))
