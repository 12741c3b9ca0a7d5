# SPDX-License-Identifier: Apache-2.0
"""The table of `shoal bench`."""

from __future__ import annotations

import pytest

from shoal_simulations.commands.bench import _print


def test_names_and_values_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    _print("engine", {"peers": {"[/x]": "[bold]"}, "ratio": [15.25]})
    out = capsys.readouterr().out
    assert "peers.[/x]" in out
    assert "[bold]" in out
    assert "15.25" in out


def test_rows_are_a_table_without_empty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    _print("engine", {"figures": [{"[/name]": "a", "value": 1234567.0, "why": ""}]})
    out = capsys.readouterr().out
    assert "[/name]" in out
    assert "1,234,567" in out
    assert "why" not in out
