# SPDX-License-Identifier: Apache-2.0
"""Kernels keep IEEE arithmetic, and their cache knows every file that they draw on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import shoal_common.kernels as kernels
from shoal_common.kernels import SOURCES, STAMP, kernel, lean_kernel


def sum_up(values: np.ndarray) -> float:
    total = 0.0
    for value in values:
        total += value
    return total


def test_sums_are_added_in_their_order() -> None:
    values = np.array([1e16, 1.0, -1e16, 1.0])
    for compiled in (kernel(sum_up), lean_kernel(sum_up)):
        assert compiled(values) == 1.0
        assert np.isnan(compiled(np.array([np.nan, 1.0])))


def test_a_cache_entry_carries_the_stamp_of_all_kernel_sources() -> None:
    compiled = lean_kernel(sum_up)
    assert compiled._cache._cache_file._source_stamp[1] == STAMP
    root = Path(kernels.__file__).parent
    stamped = {path.resolve() for pattern in SOURCES for path in root.glob(pattern)}
    users = {p for p in root.rglob("*.py") if "@lean_kernel" in p.read_text() or "@kernel" in p.read_text()}
    assert {p.resolve() for p in users} <= stamped
