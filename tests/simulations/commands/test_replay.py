# SPDX-License-Identifier: Apache-2.0
"""`shoal replay` and `shoal trace`: JSON on standard output, one line and exit code 2 on errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal_common.cli import main

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,32000,1000,2,T4\nn1,64000,1000,4,G2\n"
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,\
creation_time,deletion_time,scheduled_time
p0,4000,10,1,500,,LS,Running,0,10,0
p1,8000,10,1,1000,,LS,Running,5,50,6
p2,2000,10,0,0,,BE,Running,9,20,9
"""


@pytest.fixture
def lists(tmp_path: Path) -> list[str]:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(PODS)
    return ["--nodes", str(tmp_path / "nodes.csv"), "--pods", str(tmp_path / "pods.csv")]


def shoal(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_replay_prints_one_document(lists: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert shoal("replay", *lists, "--scorer", "fgd", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {"scorer", "allocation", "fragmentation", "pods", "seconds"}
    assert report["allocation"].keys() == report["fragmentation"].keys()
    assert report["pods"] >= 3


def test_replay_with_lifetimes(lists: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert shoal("replay", *lists, "--scorer", "bestfit", "--lifetimes", "--share", "0.5", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["nodes"] == 1
    assert report["never_started"] == 0
    assert shoal("replay", *lists, "--scorer", "random", "--lifetimes") == 0
    assert "waiting_s mean" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--scorer", "nothing"], "there is no such scorer"),
        (["--scorer", "fgd", "--key", "default_42"], "one is given without the other"),
        (["--scorer", "fgd", "--share", "0.5"], "for --lifetimes only"),
        (["--scorer", "fgd", "--order", "none.npz", "--key", "a"], "cannot be read"),
        (["--scorer", "fgd", "--seed", "-1"], "--seed"),
    ],
)
def test_replay_refuses_in_one_line(
    lists: list[str], extra: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shoal("replay", *lists, *extra) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("shoal: ")
    assert message in last


def test_trace_list_check_info(lists: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert shoal("trace", "list", "--json") == 0
    assert {row["name"] for row in json.loads(capsys.readouterr().out)} >= {"openb-pods", "borg2011-tasks"}
    assert shoal("trace", "check", lists[3], "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 3
    assert shoal("trace", "info", lists[3], "--json") == 0
    info = json.loads(capsys.readouterr().out)
    assert (info["format"], info["fractional_gpu"], info["span_s"]) == ("openb-pods", 1, 9.0)
    assert shoal("trace", "info", lists[1], "--json") == 0
    assert json.loads(capsys.readouterr().out)["gpu_models"]["G2"] == {"nodes": 1, "gpus": 4}
    assert shoal("trace", "info", lists[3]) == 0
    assert shoal("trace", "list") == 0


def test_trace_check_names_the_bad_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text(NODES.replace("64000", "64k"))
    assert shoal("trace", "check", str(path)) == 2
    assert f"{path}:3: cpu_milli: '64k' is no whole number" in capsys.readouterr().err


def test_replay_wants_devices_to_allocate(lists: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path(lists[1]).write_text("sn,cpu_milli,memory_mib,gpu,model\nn0,64000,1000,0,\n")
    assert shoal("replay", *lists, "--scorer", "fgd") == 2
    assert "gpu: no node has one" in capsys.readouterr().err
    assert shoal("replay", *lists, "--scorer", "fgd", "--lifetimes", "--json") == 0


def test_trace_info_shows_models_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nodes[b].csv"
    path.write_text("sn,cpu_milli,memory_mib,gpu,model\nn0,64000,1000,1,[/G2]\n")
    assert shoal("trace", "info", str(path)) == 0
    assert "[/G2]" in capsys.readouterr().out
