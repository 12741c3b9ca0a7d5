# SPDX-License-Identifier: Apache-2.0
"""Two orders of the published openb results, all 131 columns; `shoal bench openb` compares all of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal_simulations.benchmarks.openb import PUBLISHED_NAMES, QUICK_KEYS, TOLERANCE, run

DATA = os.environ.get("SHOAL_DATA")


@pytest.mark.skipif(not DATA, reason="SHOAL_DATA does not point to the traces")
def test_all_columns_equal_the_published_ones() -> None:
    data = Path(DATA or "")
    report = run(data / "openb", data / "fgd_expected", quick=True)
    expected = [(key, policy) for key in QUICK_KEYS for policy in PUBLISHED_NAMES]
    assert [(f"{c['workload']}_{c['seed']}", c["policy"]) for c in report["cells"]] == expected
    for cell in report["cells"]:
        assert cell["allocation_max_abs_diff"] <= TOLERANCE, cell
        assert cell["fragmentation_max_abs_diff"] <= TOLERANCE, cell
    assert report["equal"] == report["total"] == len(expected)
