# SPDX-License-Identifier: Apache-2.0
"""Two cells of the published openb results, all 131 columns; `shoal bench openb` compares all of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal_simulations.benchmarks.openb import PUBLISHED_NAMES, TOLERANCE, compare

DATA = os.environ.get("SHOAL_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="SHOAL_DATA does not point to the traces")


@needs_data
@pytest.mark.parametrize("key", ["default_42", "gpuspec20_44"])
def test_all_columns_equal_the_published_ones(key: str) -> None:
    data = Path(DATA or "")
    cells = list(compare(data / "openb", data / "fgd_expected", (key,)))
    assert [c["policy"] for c in cells] == list(PUBLISHED_NAMES)
    for cell in cells:
        assert cell["allocation_max_abs_diff"] <= TOLERANCE, cell
        assert cell["fragmentation_max_abs_diff"] <= TOLERANCE, cell
