# SPDX-License-Identifier: Apache-2.0
"""Properties of quantities that hold for every number and suffix."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_common.quantity import BINARY, DECIMAL, milli_value, parse_quantity, value

whole = st.integers(0, 10**6)
suffix = st.sampled_from(["", *DECIMAL, *BINARY])
SCALE = {
    "": Fraction(1),
    **{name: Fraction(10) ** power for name, power in DECIMAL.items()},
    **{name: Fraction(2**power) for name, power in BINARY.items()},
}


@given(whole=whole, thousandths=st.integers(0, 999), unit=suffix)
@settings(deadline=None, derandomize=True, max_examples=200)
def test_a_decimal_times_its_suffix(whole: int, thousandths: int, unit: str) -> None:
    exact = Fraction(whole * 1000 + thousandths, 1000) * SCALE[unit]
    parsed = parse_quantity(f"{whole}.{thousandths:03d}{unit}")
    if exact > 2**63 - 1:
        assert parsed == 2**63 - 1
    else:
        assert exact <= parsed < exact + Fraction(1, 10**9)
        assert parsed == exact or unit in ("n", "u")


@given(whole=whole, exponent=st.integers(-6, 9), letter=st.sampled_from("eE"))
@settings(deadline=None, derandomize=True, max_examples=100)
def test_exponents_mean_powers_of_ten(whole: int, exponent: int, letter: str) -> None:
    assert parse_quantity(f"{whole}{letter}{exponent}") == whole * Fraction(10) ** exponent


@given(nanos=st.integers(0, 10**15))
@settings(deadline=None, derandomize=True, max_examples=100)
def test_rounding_is_the_smallest_integer_not_below(nanos: int) -> None:
    quantity = parse_quantity(f"{nanos}n")
    assert quantity == Fraction(nanos, 10**9)
    assert value(quantity) - 1 < quantity <= value(quantity)
    assert milli_value(quantity) - 1 < quantity * 1000 <= milli_value(quantity)


@given(text=st.text(max_size=8))
@settings(deadline=None, derandomize=True, max_examples=300)
def test_any_text_is_a_quantity_or_a_value_error(text: str) -> None:
    try:
        parsed = parse_quantity(text)
    except ValueError as error:
        assert repr(text) in str(error)  # noqa: PT017 - the other outcome is fine, too
    else:
        assert parsed <= 2**63 - 1
