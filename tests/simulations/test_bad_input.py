# SPDX-License-Identifier: Apache-2.0
"""Wrong fleets, traces and flags at the command line: one line with the field and a remedy, exit code 2."""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path

import pytest

from shoal_common import cli

NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
    "creation_time,deletion_time,scheduled_time\n"
)
GOOD_NODE = "node-0,64000,262144,2,G2\n"
GOOD_POD = "pod-0,4000,8192,1,500,,LS,Running,0,100,1\n"
SMALL = (files("shoal_simulations") / "fleets" / "small.toml").read_text()
FILES = {
    "nodes.csv": NODES + GOOD_NODE,
    "pods.csv": PODS + GOOD_POD,
    "torn.csv": PODS + GOOD_POD + "pod-1,40x0,8192,1,500,,LS,Running,0,100,1\n",
    "short.csv": PODS + "pod-0,4000\n",
    "headless.csv": GOOD_POD,
    "wrong.toml": '[fleet]\nname = "x"\n',
    "broken.toml": "[fleet\n",
    "cases.json": "{broken",
    "notes.txt": "hello",
    "boolean.toml": SMALL.replace("rounds = 2", "rounds = true"),
    "text.toml": SMALL.replace("rounds = 2", 'rounds = "2"'),
    "negative.toml": SMALL.replace("rounds = 2", "rounds = -2"),
    "digits.toml": "rounds = " + "9" * 5_000,
    "policy/manifest.json": "[1]",
    "policy/policy.safetensors": "",
    "policy/encoder.onnx": "",
    "policy/head.onnx": "",
    "damaged/run.json": "[1]",
    "torn/run.json": '{"digest',
}
REPLAY = "replay --nodes nodes.csv --pods"
PLAN = "privacy plan --batch 2 --units 10 --steps 10 --delta 1e-6 --noise-multiplier"
CASES = {  # command line: what the line must say
    "simulate": ["--out"],
    "simulate --out run --rounds 0": ["--rounds", "x>=1"],
    "simulate --out run --rounds two": ["--rounds", "integer"],
    "simulate --out run --seed -1": ["--seed", "0<=x"],
    "simulate --out run --workers 0": ["--workers", "x>=1"],
    "simulate --out run --engine spark": ["--engine", "in-process"],
    "simulate --out run --flet x": ["--flet", "--fleet"],
    "simulate --out run --fleet nowhere.toml": ["nowhere.toml", "--fleet", "name an existing"],
    "simulate --out run --fleet nowhere": ["--fleet", "default"],
    "simulate --out run --fleet wrong.toml": ["wrong.toml", "clusters", "add it"],
    "simulate --out run --fleet broken.toml": ["broken.toml", "line 1", "repair"],
    "simulate --out notes.txt --fleet small": ["notes.txt", "--out", "another folder"],
    "simulate --out notes.txt/run --fleet small": ["notes.txt/run", "--out", "another folder"],
    "simulate --out /proc --fleet small": ["/proc", "--out", "cannot be used"],
    "simulate --out damaged --fleet small": ["damaged", "run.json", "--fresh"],
    "simulate --out torn --fleet small": ["torn", "run.json", "--fresh"],
    "simulate --out run --seed 99999999999999999999": ["--seed", "4294967295"],
    "simulate --out run --fleet policy": ["policy", "--fleet", "readable"],
    "simulate --out run --fleet boolean.toml": ["federation.rounds", "whole number"],
    "simulate --out run --fleet text.toml": ["federation.rounds", "whole number"],
    "simulate --out run --fleet negative.toml": ["federation.rounds", "at least 1"],
    "simulate --out run --fleet digits.toml": ["digits.toml", "TOML", "repair"],
    f"simulate --out run --fleet {'x' * 5_000}": ["--fleet", "default"],
    "policy": ["Missing command"],
    "privacy": ["Missing command"],
    "trace": ["Missing command"],
    "experiment": ["Missing command"],
    "policy show notes.txt": ["manifest.json", "is missing"],
    "policy verify policy": ["manifest.json", "is not a manifest"],
    "privacy ledger policy": ["policy", "no such file"],
    f"{PLAN} 1e-9": ["noise_multiplier", "larger"],
    f"{PLAN} nan": ["noise_multiplier", "finite"],
    f"{PLAN} 1 --units {10**30}": ["--units"],
    "bench": ["WHAT", "engine"],
    "experiment run action_interface --out notes.txt": ["notes.txt", "--out", "another folder"],
    "experiment run federation --out notes.txt/x": ["notes.txt/x", "--out", "another folder"],
    "bench speed": ["WHAT", "engine"],
    "experiment run nothing": ["NAME", "federation"],
    f"{REPLAY} absent.csv --scorer fgd": ["absent.csv"],
    f"{REPLAY} torn.csv --scorer fgd": ["torn.csv", "3", "cpu_milli"],
    f"{REPLAY} short.csv --scorer fgd": ["short.csv", "2"],
    f"{REPLAY} headless.csv --scorer fgd": ["headless.csv"],
    f"{REPLAY} pods.csv --scorer sjf": ["scorer", "bestfit"],
    f"{REPLAY} pods.csv --scorer fgd --seed -3": ["--seed", "x>=0"],
    "trace check absent.csv": ["absent.csv"],
    "trace check torn.csv": ["torn.csv", "cpu_milli"],
    "score --scorer kube@9.99 --input cases.json": ["kube@1.36"],
    "score --scorer kube@1.36 --input cases.json": ["cases.json"],
    "privacy ledger absent.jsonl": ["absent.jsonl", "no such file"],
    "nonsense": ["nonsense"],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("line", CASES, ids=lambda line: line[:60])
def test_one_line_and_exit_code_2(line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(line.split())
    out, err = capsys.readouterr()
    assert ended.value.code == 2, err
    assert out == ""
    assert err.startswith("shoal: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    for word in CASES[line]:
        assert word in err


def test_a_folder_of_another_run_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "run").mkdir()
    (folder / "run" / "run.json").write_text(json.dumps({"digest": "other", "fleet": "toy", "seed": 1}))
    with pytest.raises(SystemExit) as ended:
        cli.main(["simulate", "--out", "run", "--fleet", "small"])
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert "--out: holds a run of another configuration (fleet toy, seed 1); add --fresh" in err
    assert (folder / "run" / "run.json").exists()


def test_the_bare_command_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert err.startswith("Usage: shoal")


COMMANDS = sorted(point.name for point in entry_points(group="shoal.commands"))


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([*command.split(), "--help"])
    assert ended.value.code == 0
    assert "Usage: shoal" in capsys.readouterr().out


def test_listing_the_commands_imports_none_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    out = capsys.readouterr().out
    assert all(command in out for command in COMMANDS)
