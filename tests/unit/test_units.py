import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.errors import BudgetFormatError, InvalidArgumentError, LowtideError
from lowtide.step.format import format_bytes, format_percent, format_seconds
from lowtide.step.units import to_bytes, to_fraction


@pytest.mark.parametrize(
    ("budget", "num_bytes"),
    [
        ("6 GiB", 6 * 1024**3),
        ("6GiB", 6 * 1024**3),
        ("6G", 6 * 1024**3),
        ("512m", 512 * 1024**2),
        ("6e9", 6 * 10**9),
        ("6000000000", 6 * 10**9),
        (6e9, 6 * 10**9),
        ("6gib", 6 * 1024**3),
        ("  6   GiB ", 6 * 1024**3),
        ("6GB", 6 * 1000**3),
        ("1.5 GB", 1_500_000_000),
        (".5 KiB", 512),
        ("1e3 MB", 10**9),
        ("+2 B", 2),
        ("1_000 bytes", 1000),
        ("3 TiB", 3 * 1024**4),
        ("2 PB", 2 * 1000**5),
        (1, 1),
        (6442450944, 6442450944),
        (np.int64(4096), 4096),
        ("60%", 600),
        ("60 %", 600),
        ("12.5%", 125),
        ("150%", 1500),
    ],
)
def test_budgets_are_read(budget, num_bytes):
    assert to_bytes(budget, baseline_bytes=1000) == num_bytes


def test_decimal_fractions_are_exact_and_parts_of_a_byte_are_dropped():
    # 0.29 * 100 is 28.999999999999996 in binary floating point.
    assert to_bytes("29%", baseline_bytes=100) == 29
    assert to_bytes("50%", baseline_bytes=3) == 1


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (0.5, 'Write "50%" for a share of the unplanned peak'),
        (6.0, 'Write "6 GiB" for a size'),
        ("0.6", 'Write "60%" for a share of the unplanned peak'),
        ("0.655", 'Write "65.5%" for a share of the unplanned peak'),
        (np.float64(0.25), 'Write "25%"'),
        (float("nan"), "nan is not a size above zero"),
        (float("inf"), "inf is not a size above zero"),
        (-0.5, "-0.5 is not a size above zero"),
        ("6 XB", "'XB' is not a unit"),
        ("6 XB", "K, M, G, T, P (powers of 1024)"),
        ("6 bits", "'bits' is not a unit"),
        ("6", 'Write "6 GiB", "6 MiB" or "6 B"'),
        ("", "it is empty"),
        ("  ", "it is empty"),
        ("GiB", "not a number followed by a unit"),
        ("six GiB", "not a number followed by a unit"),
        ("6,5 GiB", "not a number followed by a unit"),
        ("nan%", "not a number followed by a unit"),
        ("inf GiB", "not a number followed by a unit"),
        ("1e400 GiB", "no machine has that many bytes"),
        ("0%", "0% is not above zero"),
        ("-60%", "-60% is not above zero"),
        ("0 GiB", "0GiB is not above zero"),
        ("0.1 B", "less than one byte"),
        (0, "0 bytes is not above zero"),
        (-1, "-1 bytes is not above zero"),
        (True, "a truth value is not a size"),
        (None, "NoneType is neither text nor a whole number"),
        ([6], "list is neither text nor a whole number"),
    ],
)
def test_malformed_budgets_are_refused_with_a_hint(budget, expected):
    with pytest.raises(BudgetFormatError) as caught:
        to_bytes(budget, baseline_bytes=1000)
    message = str(caught.value)
    assert message.startswith(f"budget {budget!r} is not understood: ")
    assert expected in message
    for form in ('"6 GiB"', '"6GB"', "6442450944", '"60%"'):
        assert form in message
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, LowtideError)


def test_a_percentage_needs_a_baseline():
    with pytest.raises(BudgetFormatError, match="profile the step first"):
        to_bytes("60%")
    assert to_bytes("6 B") == 6


@pytest.mark.parametrize(
    ("value", "fraction"),
    [("10%", 0.1), ("7.5 %", 0.075), (0.1, 0.1), (0, 0.0), ("0%", 0.0), (2, 2.0)],
)
def test_fractions_are_read(value, fraction):
    assert to_fraction(value) == fraction


@pytest.mark.parametrize(
    "value",
    ["", "10", "ten%", "-1%", -0.1, float("nan"), float("inf"), True, None, "10 GiB"],
)
def test_malformed_fractions_are_refused(value):
    with pytest.raises(InvalidArgumentError) as caught:
        to_fraction(value)
    assert str(caught.value).startswith(f"max_overhead={value!r}: ")
    assert str(caught.value).endswith('Write max_overhead="10%" or max_overhead=0.10.')


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (1024**2 - 1, "1.00 MiB"),
        (100 * 1024**2, "100.0 MiB"),
        (1023 * 1024**2, "1023.0 MiB"),
        (6 * 1024**3, "6.00 GiB"),
        (11.42 * 1024**3, "11.42 GiB"),
        (-2048, "-2.00 KiB"),
        (5000 * 1024**5, "5000.0 PiB"),
    ],
)
def test_bytes_are_shown(num_bytes, text):
    assert format_bytes(num_bytes) == text


@given(st.integers(min_value=1, max_value=10**16))
def test_shown_bytes_read_back_within_rounding(num_bytes):
    assert to_bytes(format_bytes(num_bytes)) == pytest.approx(num_bytes, rel=0.006)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (3.2e-10, "0.32 ns"),
        (4.5e-8, "45.0 ns"),
        (1.23e-5, "12.3 us"),
        (9.996e-4, "1.00 ms"),
        (0.412, "412 ms"),
        (0.9999, "1.00 s"),
        (4, "4.00 s"),
        (61.4, "61.4 s"),
        (119.9, "2 min 0 s"),
        (125, "2 min 5 s"),
        (3725, "1 h 2 min"),
        (-0.032, "-32.0 ms"),
    ],
)
def test_seconds_are_shown(seconds, text):
    assert format_seconds(seconds) == text


def test_percentages_are_shown():
    assert format_percent(0.078) == "7.8 %"
    assert format_percent(0.078, signed=True) == "+7.8 %"
    assert format_percent(-0.42, signed=True) == "-42.0 %"
