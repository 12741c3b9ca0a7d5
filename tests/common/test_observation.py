# SPDX-License-Identifier: Apache-2.0
"""The page of the twin lists every feature as the code has it."""

from __future__ import annotations

from pathlib import Path

from shoal_common.observation import CONTEXT_FEATURES, NODE_FEATURES, PAIR_FEATURES, TASK_FEATURES

PAGE = Path(__file__).parents[2] / "docs" / "twin.md"


def test_the_page_lists_every_feature() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    tables = (NODE_FEATURES, PAIR_FEATURES, TASK_FEATURES, CONTEXT_FEATURES)
    features = [f for table in tables for f in table]
    assert rows == [f"| `{f.name}` | {f.unit} | {f.low:g} to {f.high:g} | {f.doc} |" for f in features]
