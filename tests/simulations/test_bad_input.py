# SPDX-License-Identifier: Apache-2.0
"""Wrong fleets, traces and flags at the command line: one line with the field and a remedy, exit code 2."""

from __future__ import annotations

import json
from importlib.metadata import entry_points
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
}
REPLAY = "replay --nodes nodes.csv --pods"
CASES = {  # command line: what the line must say
    "simulate": ["--out"],
    "simulate --out run --rounds 0": ["--rounds", "x>=1"],
    "simulate --out run --rounds two": ["--rounds", "integer"],
    "simulate --out run --seed -1": ["--seed", "x>=0"],
    "simulate --out run --workers 0": ["--workers", "x>=1"],
    "simulate --out run --engine spark": ["--engine", "in-process"],
    "simulate --out run --flet x": ["--flet", "--fleet"],
    "simulate --out run --fleet nowhere.toml": ["nowhere.toml", "--fleet", "name an existing"],
    "simulate --out run --fleet nowhere": ["--fleet", "default"],
    "simulate --out run --fleet wrong.toml": ["wrong.toml", "clusters", "add it"],
    "simulate --out run --fleet broken.toml": ["broken.toml", "line 1", "repair"],
    "simulate --out notes.txt --fleet small": ["notes.txt", "--out", "another folder"],
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
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("line", CASES)
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
