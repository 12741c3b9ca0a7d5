# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path
from typing import Any

import pytest

from shoal_common.cli import main
from shoal_common.privacy.ledger import Ledger, LedgerRow

PLAN = ["privacy", "plan", "--batch", "64", "--units", "5000", "--steps", "50", "--delta", "1e-5"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    output = capsys.readouterr()
    code = left.value.code
    assert isinstance(code, int)
    return code, output.out, output.err


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, _ = run(capsys, *arguments, "--json")
    assert code == 0
    loaded = json.loads(out)
    assert isinstance(loaded, dict)
    return loaded


def ledger_at(path: Path, rounds: int = 2, simulation: bool = False) -> Ledger:
    ledger = Ledger(path)
    for number in range(rounds):
        ledger.charge(
            LedgerRow(
                cluster="edge-1",
                round=number,
                step_begin=10 * number,
                step_end=10 * number + 10,
                mechanism="poisson_subsampled_gaussian",
                sample_rate=0.01,
                noise_multiplier=1.0,
                steps=15,
                delta=1e-6,
                unit="transition",
                neighbouring="add_remove",
                simulation=simulation,
            )
        )
    return ledger


def test_a_plan_in_figures(capsys: pytest.CaptureFixture[str]) -> None:
    plan = document(capsys, *PLAN, "--noise-multiplier", "2", "--clip-norm", "0.5")
    assert plan["sample_rate"] == 0.0128
    assert plan["releases"] == 75
    assert plan["noise_std_sum"] == 1.0
    assert plan["noise_std_mean"] == 1 / 64
    assert plan["parameters_where_noise_equals_signal"] == 32**2
    assert (plan["unit"], plan["neighbouring"], plan["delta"]) == ("transition", "add_remove", 1e-5)
    assert 0 < plan["epsilon"] < 1
    assert plan["group"]["records"] == 50
    assert plan["group"]["epsilon"] > 10 * plan["epsilon"]
    assert "trace" in plan["caveat"]
    assert plan["warnings"] == []


def test_a_plan_by_target(capsys: pytest.CaptureFixture[str]) -> None:
    plan = document(capsys, *PLAN, "--target-epsilon", "1.5", "--actor-every", "0")
    assert 1.48 < plan["epsilon"] <= 1.5
    assert plan["releases"] == 50


def test_a_weak_delta_is_said_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *PLAN[:-1], "1e-4", "--noise-multiplier", "2", "--json")
    assert code == 0
    assert "delta" in err
    assert len(json.loads(out)["warnings"]) == 1


def test_tables_name_unit_and_neighbours(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, out, _ = run(capsys, *PLAN, "--noise-multiplier", "2")
    assert "one transition, add_remove" in out
    ledger_at(tmp_path / "ledger", simulation=True)
    _, out, _ = run(capsys, "privacy", "ledger", str(tmp_path / "ledger"))
    assert "unit: one transition" in out
    assert "not a guarantee" in out


def test_a_ledger_in_figures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    ledger = ledger_at(tmp_path / "ledger")
    shown = document(capsys, "privacy", "ledger", str(tmp_path / "ledger"))
    assert shown["epsilon"] == ledger.epsilon(1e-6)
    assert shown["head"] == ledger.head
    assert shown["watermark"] is None
    assert [row["hash"] for row in shown["rows"]] == [row.hash for row in ledger.rows]
    other = document(capsys, "privacy", "ledger", str(tmp_path / "ledger"), "--delta", "1e-9")
    assert other["epsilon"] > shown["epsilon"]


def test_an_empty_ledger_has_released_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "ledger").touch()
    assert document(capsys, "privacy", "ledger", str(tmp_path / "ledger"))["epsilon"] == 0.0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([*PLAN], "noise_multiplier"),
        ([*PLAN, "--noise-multiplier", "nan"], "noise_multiplier"),
        ([*PLAN, "--noise-multiplier", "2", "--target-epsilon", "1"], "target_epsilon"),
        ([*PLAN[:-1], "1e-3", "--noise-multiplier", "2"], "delta"),
        ([*PLAN, "--noise-multiplier", "2", "--clip-norm", "0"], "clip_norm"),
        (["privacy", "ledger", "/nowhere/ledger"], "/nowhere/ledger"),
        (["privacy", "ledger", "/"], "no such file"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], word: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert word in err
    assert err.count("\n") == 1


def test_a_tampered_ledger_is_one_line_and_exit_code_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ledger_at(tmp_path / "ledger")
    content = (tmp_path / "ledger").read_text()
    (tmp_path / "ledger").write_text(content.replace('"steps":15', '"steps":14', 1))
    code, out, err = run(capsys, "privacy", "ledger", str(tmp_path / "ledger"))
    assert (code, out) == (1, "")
    assert "ledger:1:" in err
    assert err.count("\n") == 1


def test_a_path_is_shown_as_it_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ledger_at(Path("[/x]"))
    code, out, err = run(capsys, "privacy", "ledger", "[/x]")
    assert code == 0, err
    assert "[/x]" in out
