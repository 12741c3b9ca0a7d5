# SPDX-License-Identifier: Apache-2.0
"""`shoal client train` and `run`: wrong options in one line, before anything is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal_common.cli import main


@pytest.mark.parametrize("command", ["train", "run"])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--cluster", " ", "--no-privacy"], "--cluster: is empty"),
        (["--cluster", "c"], "--epsilon: is not given"),
        (["--cluster", "c", "--epsilon", "1", "--no-privacy"], "stands beside --no-privacy"),
        (["--cluster", "c", "--epsilon", "nan"], "--epsilon: nan is out of range"),
        (["--cluster", "c", "--epsilon", "1", "--delta", "2"], "--delta: 2 is out of range"),
    ],
)
def test_wrong_options_are_told_in_one_line(
    command: str, options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["client", command, "--data", str(tmp_path / "data"), *options])
    assert caught.value.code == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
