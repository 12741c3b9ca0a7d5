# SPDX-License-Identifier: Apache-2.0
"""Kubernetes quantities, exact.

The grammar is that of apimachinery's resource.Quantity: a sign, decimal digits with an optional point, and
one of nothing, a decimal suffix (n u m k M G T P E), a binary suffix (Ki Mi Gi Ti Pi Ei) or an exponent. So
"129e6" is 129 million, "2E" is two exa and "2E3" is two thousand. As there, anything finer than 1n is rounded
away from zero to 1n, and anything above 2^63 - 1 becomes 2^63 - 1.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import lru_cache

GRAMMAR = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?"
    r"(?P<suffix>[numkMGTPE]|[KMGTPE]i|[eE](?P<exponent>[+-]?[0-9]+))?"
)
DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
LARGEST = Fraction(2**63 - 1)
NANO = 10**9
FARTHEST_EXPONENT = 200  # beyond it every value is rounded to 1n or capped; the power itself is never built


@lru_cache(maxsize=65_536)
def _parse_text(text: str) -> Fraction:
    match = GRAMMAR.fullmatch(text)
    if match is None or not (match["whole"] or match["part"]):
        raise ValueError(
            f"{text!r} is not a Kubernetes quantity: write digits with an optional point, then one of "
            "n u m k M G T P E Ki Mi Gi Ti Pi Ei or an exponent such as e3"
        )
    part, suffix = match["part"] or "", match["suffix"] or ""
    digits = int((match["whole"] + part) or "0")
    exact = Fraction(digits, 10 ** len(part)) * _multiplier(suffix, match["exponent"], len(text))
    rounded = Fraction(math.ceil(exact * NANO), NANO)
    return -rounded if match["sign"] == "-" else min(rounded, LARGEST)


def _multiplier(suffix: str, exponent: str | None, length: int) -> Fraction:
    if exponent is not None:
        limit = FARTHEST_EXPONENT + length
        return Fraction(10) ** max(-limit, min(limit, int(exponent)))
    if suffix in BINARY:
        return Fraction(2 ** BINARY[suffix])
    return Fraction(10) ** DECIMAL.get(suffix, 0)


def parse_quantity(value: object) -> Fraction:
    """Read a quantity as it stands in JSON: a string, or a bare number.

    Raises:
        ValueError: not a quantity; the sentence quotes it and says what may be written.
    """
    if isinstance(value, str):
        return _parse_text(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _parse_text(repr(value))
    raise ValueError(f"{value!r} is not a Kubernetes quantity: write a string such as '500m' or a number")


def value(quantity: Fraction) -> int:
    """Whole units, rounded up, as Quantity.Value(): 0.1 -> 1."""
    return math.ceil(quantity)


def milli_value(quantity: Fraction) -> int:
    """Thousandths, rounded up, as Quantity.MilliValue(): 100.1m -> 101."""
    return math.ceil(quantity * 1000)
