# SPDX-License-Identifier: Apache-2.0
"""Bug reports of neighbouring projects as tests: each numbered case has a test of its name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KUBERNETES_CASES = (
    (1, 2, 3, 5, 7, 8, 9, 10, 11, 12, 13)  # extender behaviour
    + (14, 16, 17, 19, 20, 21, 22, 24, 25)  # caches, races, double allocation
    + (26, 27, 28, 29, 31, 32)  # watch and client
    + (33, 35, 36, 37, 38)  # units and pod requests
    + (39, 40, 42, 43, 44, 45)  # metrics
    + (46, 49, 50, 51)  # nodes
    + (52, 54, 55, 56, 58, 59, 60)  # GPU, MIG, NUMA
    + (61, 63, 64, 65, 66, 67, 68)  # operations
)


def _named() -> set[int]:
    names = re.compile(r"def test_case_(\d+)_\w+\(")
    return {int(n) for path in (ROOT / "tests").rglob("*.py") for n in names.findall(path.read_text())}


@pytest.mark.parametrize("case", KUBERNETES_CASES)
def test_a_case_has_a_test_of_its_name(case: int) -> None:
    assert case in _named()
