# SPDX-License-Identifier: Apache-2.0
"""Bug reports of neighbouring projects as tests: each numbered case has a test of its name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KUBERNETES_CASES = {
    "extender behaviour": (1, 2, 3, 5, 7, 8, 9, 10, 11, 12, 13),
    "caches, races, double allocation": (14, 16, 17, 19, 20, 21, 22, 24, 25),
    "watch and client": (26, 27, 28, 29, 31, 32),
    "units and pod requests": (33, 35, 36, 37, 38),
    "metrics": (39, 40, 42, 43, 44, 45),
    "nodes": (46, 49, 50, 51),
    "GPU, MIG, NUMA": (52, 54, 55, 56, 58, 59, 60),
    "operations": (61, 63, 64, 65, 66, 67, 68),
}


def _named() -> set[int]:
    names = re.compile(r"def test_case_(\d+)_\w+\(")
    return {int(n) for path in (ROOT / "tests").rglob("*.py") for n in names.findall(path.read_text())}


@pytest.mark.parametrize("case", [case for cases in KUBERNETES_CASES.values() for case in cases])
def test_a_case_has_a_test_of_its_name(case: int) -> None:
    assert case in _named()
