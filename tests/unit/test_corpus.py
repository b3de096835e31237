"""What the corpus says of a model, judged from records."""

import pytest

from benchmarks.zoo.verdict import VERDICTS, reason_of, table, verdict_of

MIB = 1 << 20
WELL = {
    "difference": "",
    "warnings": [],
    "forwards": 3,
    "eager_peak_bytes": 120 * MIB,
    "budget_bytes": 100 * MIB,
    "peak_bytes": 100 * MIB,
    "ledger_peak_bytes": 99 * MIB,
}


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ({}, "planned"),
        ({"peak_bytes": 102 * MIB}, "planned"),
        ({"peak_bytes": 102 * MIB + 1}, "over budget"),
        ({"ledger_peak_bytes": 102 * MIB + 1}, "over budget"),
        ({"peak_bytes": None}, "planned"),
        ({"peak_bytes": 101 * MIB, "eager_peak_bytes": 101 * MIB}, "nothing saved"),
        ({"peak_bytes": 101 * MIB, "eager_peak_bytes": 102 * MIB}, "planned"),
        (
            {"peak_bytes": 110 * MIB, "warnings": ["the step as a whole does not."]},
            "partly",
        ),
        (
            {"peak_bytes": 110 * MIB, "warnings": ["The step is run at that peak."]},
            "partly",
        ),
        ({"difference": "step 1, loss"}, "other bits"),
        (
            {"difference": "loss", "warnings": ["so the last bit may differ."]},
            "last bits",
        ),
        ({"difference": "loss", "eager_differs_from_itself": True}, "planned"),
        ({"forwards": 0}, "unplanned"),
        ({"warnings": ["It runs as it is, under no budget."]}, "unplanned"),
        ({"warnings": ["1 of its graphs runs as it is"]}, "planned"),
        ({"refused": "too small", "difference": "loss"}, "refused"),
        ({"exception": "ValueError: no"}, "exception"),
        ({"not_run": "ValueError: no", "exception": "too"}, "not run"),
    ],
)
def test_the_worst_is_said(found, verdict):
    assert verdict_of(WELL | found) == verdict


def test_each_verdict_but_the_best_has_a_reason():
    assert reason_of(WELL) == ""
    assert reason_of(WELL | {"difference": "step 1, loss"}) == "step 1, loss"
    assert reason_of({"no_end": "no end in 120 s"}) == "no end in 120 s"
    assert reason_of(WELL | {"forwards": 0}) == "no planned graph ran, unsaid"
    assert reason_of(WELL | {"peak_bytes": 110 * MIB}) == (
        "budget 100.0 MiB, peak 110.0 MiB, ledger peak 99.0 MiB, eager peak 120.0 MiB"
    )


def test_the_table_counts_by_library():
    known = {"timm/a": WELL, "timm/b": WELL | {"forwards": 0}, "odd/c": WELL}
    first, *rows = table(known)
    assert first == ["", "timm", "odd", "all"]
    assert rows[0] == ["planned", "1", "1", "2"]
    assert rows[4] == ["unplanned", "1", "", "1"]
    assert [row[0] for row in rows] == list(VERDICTS)
