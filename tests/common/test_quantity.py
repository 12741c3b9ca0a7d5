# SPDX-License-Identifier: Apache-2.0
"""Quantities as Kubernetes writes them, by hand: accepted and refused forms, and rounding."""

from __future__ import annotations

from fractions import Fraction

import pytest

from shoal_common.quantity import milli_value, parse_quantity, value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", Fraction(0)),
        ("100m", Fraction(1, 10)),
        ("0.1", Fraction(1, 10)),
        ("1e3", Fraction(1000)),
        ("1E3", Fraction(1000)),
        ("2E3", Fraction(2000)),
        ("2E", Fraction(2 * 10**18)),
        ("129e6", Fraction(129_000_000)),
        ("129M", Fraction(129_000_000)),
        ("128974848000m", Fraction(128_974_848)),
        ("123Mi", Fraction(123 * 2**20)),
        ("1Ei", Fraction(2**60)),
        (".5", Fraction(1, 2)),
        ("5.", Fraction(5)),
        ("-1", Fraction(-1)),
        ("+1", Fraction(1)),
        ("1k", Fraction(1000)),
        ("1u", Fraction(1, 10**6)),
        ("1n", Fraction(1, 10**9)),
        ("1e-3", Fraction(1, 1000)),
        ("0.5Ki", Fraction(512)),
    ],
)
def test_case_33_accepted_forms_are_exact(text: str, expected: Fraction) -> None:
    assert parse_quantity(text) == expected


@pytest.mark.parametrize(
    "text", ["1K", "1e", "", "1 Gi", "0x10", ".", "1ki", "1.2.3", "1e+", "Ki", "1_0", "\u0661"]
)
def test_case_33_other_forms_are_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="is not a Kubernetes quantity: write"):
        parse_quantity(text)


@pytest.mark.parametrize("content", [None, True, [], {}])
def test_only_strings_and_numbers_are_quantities(content: object) -> None:
    with pytest.raises(ValueError, match="is not a Kubernetes quantity"):
        parse_quantity(content)


def test_bare_json_numbers_are_quantities() -> None:
    assert parse_quantity(3) == 3
    assert parse_quantity(0.1) == Fraction(1, 10)
    assert parse_quantity(1e21) == 2**63 - 1


def test_finer_than_a_nano_is_rounded_away_from_zero_and_huge_is_capped() -> None:
    assert parse_quantity("0.1n") == Fraction(1, 10**9)
    assert parse_quantity("-0.1n") == Fraction(-1, 10**9)
    assert parse_quantity("1e-999999999999") == Fraction(1, 10**9)
    assert parse_quantity("1e999999999999") == 2**63 - 1
    assert parse_quantity("9E") == 9 * 10**18
    assert parse_quantity("10E") == 2**63 - 1
    assert parse_quantity("0e999999999999") == 0


def test_values_round_up() -> None:
    assert milli_value(parse_quantity("100.1m")) == 101
    assert milli_value(parse_quantity("1")) == 1000
    assert milli_value(parse_quantity("1n")) == 1
    assert value(parse_quantity("128974848000m")) == 128_974_848
    assert value(parse_quantity("0.1")) == 1
    assert value(parse_quantity("0")) == 0
