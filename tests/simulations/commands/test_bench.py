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
    assert "ratio[0]" in out
