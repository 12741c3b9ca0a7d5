# SPDX-License-Identifier: Apache-2.0
"""The results page is rendered from its JSON and hides nothing."""

from __future__ import annotations

import json
from pathlib import Path

from shoal_simulations import results

RESULT = {
    "name": "toy", "commit": "abc", "seeds": 5,
    "claims": [{"claim": "two exceeds one", "estimate": 1.0, "ci95": [0.5, 1.5], "holds": True}],
    "controls": [{"claim": "shuffled fails", "estimate": 0.25, "ci95": [-1.0, 1.5], "holds": False}],
    "metrics": {"by_cluster": [{"cluster": "left", "gain": 12.3456, "ci95": [10.0, 14.0]}], "seconds": 3.0},
}  # fmt: skip


def test_both_files_are_written(tmp_path: Path) -> None:
    data, page = results.write(RESULT, tmp_path / "new")
    assert json.loads(data.read_text()) == RESULT
    text = page.read_text()
    assert "| two exceeds one | 1 | 0.5 to 1.5 | yes |" in text
    assert "| shuffled fails | 0.25 | -1 to 1.5 | **NO** |" in text
    assert "| left | 12.35 | 10 to 14 |" in text
    assert "## Seconds\n3\n" in text


def test_the_commit_is_named() -> None:
    assert results.commit()
