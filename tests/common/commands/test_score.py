# SPDX-License-Identifier: Apache-2.0
"""`shoal score` as a person calls it: answers, and one line for every wrong input."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from shoal_common.cli import main
from shoal_common.commands.score import SCORERS


def case(**changes: object) -> dict[str, Any]:
    room = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    container = {"name": "c", "image": "a", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    return {
        "name": "one",
        "nodes": [{"metadata": {"name": name}, "status": {"allocatable": room}} for name in ("n1", "n2")],
        "pods": [],
        "pending": {"metadata": {"name": "p"}, "spec": {"containers": [container]}},
        **changes,
    }


def write(path: Path, content: object) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["score", *argv])
    captured = capsys.readouterr()
    return int(stop.value.code or 0), captured.out, captured.err


@pytest.mark.parametrize("scorer", SCORERS)
def test_every_scorer_prints_one_json_list(
    scorer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "cases.json", [case()])
    code, out, _ = run(capsys, "--scorer", scorer, "--input", str(path), "--json")
    (row,) = json.loads(out)
    assert code == 0
    assert list(row) == ["name", "failures", "codes", "feasible", "scores", "total"]
    assert row["feasible"] == ["n1", "n2"]
    assert row["total"] == {node: sum(scores.values()) for node, scores in row["scores"].items()}


def test_gzipped_cases_and_no_feasible_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cases.json.gz"
    pending = {"metadata": {"name": "p"}, "spec": {"containers": [{"resources": {"requests": {"cpu": 9}}}]}}
    path.write_bytes(gzip.compress(json.dumps([case(pending=pending)]).encode()))
    code, out, _ = run(capsys, "--input", str(path), "--json")
    assert code == 0
    assert json.loads(out) == [
        {
            "name": "one",
            "failures": {"n1": ["Insufficient cpu"], "n2": ["Insufficient cpu"]},
            "codes": {"n1": "UnschedulableAndUnresolvable", "n2": "UnschedulableAndUnresolvable"},
            "feasible": None,
            "scores": {},
            "total": {},
        }
    ]


def test_a_table_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "cases.json", [case(), case(name="two", nodes=[])])
    code, out, _ = run(capsys, "--input", str(path), "--top", "1")
    assert code == 0
    assert "one: pod default/p under kube@1.36, 2 of 2 nodes" in out
    assert "n1" in out
    assert "n2" not in out
    assert "two: pod default/p" in out


def test_a_table_shows_names_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = {"metadata": {"name": "[/red]"}, "status": {"allocatable": {"cpu": "4", "pods": "1"}}}
    cordoned = {**node, "spec": {"unschedulable": True}}
    cases = [case(name="[/a]\x1b[31m\ud800", nodes=[node]), case(name="b", nodes=[cordoned])]
    code, out, _ = run(capsys, "--input", str(write(tmp_path / "cases.json", cases)))
    assert code == 0
    assert r"[/a]\x1b[31m\ud800: pod" in out
    assert out.count("[/red]") == 2


def with_cpu(amount: object) -> list[object]:
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"resources": {"requests": {"cpu": amount}}}]}}
    return [case(pending=pod)]


WRONG: list[tuple[object, str]] = [
    ('[{"name": "one"', "line 1 column 16: is not JSON"),
    ({"name": "one"}, "is not a list"),
    ([7], "is a whole number"),
    ([{"nodes": []}], "[0].name: is missing"),
    ([case(pending=None)], "one.pending: is missing"),
    ([case(nodes=None)], "one.nodes: is missing"),
    ([case(nodes={})], "one.nodes: is an object"),
    ([case(nodes=[{}])], "one.nodes[0].metadata.name: is missing"),
    ([case(nodes=case()["nodes"] * 2)], "one.nodes[2].metadata.name: 'n1' appears twice"),
    (
        with_cpu("1K"),
        "one.pending.spec.containers[0].resources.requests.cpu: '1K' is not a Kubernetes quantity",
    ),
    (with_cpu("-1"), "'-1' is negative; write zero or more"),
    (with_cpu(None), "requests.cpu: None is not a Kubernetes quantity"),
    ([case(pending={"metadata": {"name": "p"}})], "one.pending.spec.containers: holds no container"),
    ([case(pods=[{"spec": {}}])], "one.pods[0].metadata.name: is missing"),
]


def asking(**spec: object) -> list[object]:
    return [case(pending={"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}], **spec}})]


def spread(**constraint: object) -> list[object]:
    usual = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    return asking(topologySpreadConstraints=[{**usual, **constraint}])


def preferring(weight: int) -> list[object]:
    term = {"weight": weight, "podAffinityTerm": {"topologyKey": "zone"}}
    return asking(affinity={"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}})


WRONG += [
    ("[" * 100_000, "file: nests too deep or holds too long a number"),
    ("[" + "9" * 5000 + "]", "file: nests too deep or holds too long a number"),
    (spread(maxSkew=0), "maxSkew: 0 is out of range; write 1 to 2147483647"),
    (spread(maxSkew=10**400), "is out of range"),
    (spread(minDomains=0), "minDomains: 0 is out of range"),
    (spread(whenUnsatisfiable="Maybe"), "is 'Maybe'; write DoNotSchedule or ScheduleAnyway"),
    (preferring(0), "weight: 0 is out of range; write 1 to 100"),
    (preferring(101), "weight: 101 is out of range; write 1 to 100"),
    (asking(tolerations=[{"operator": "Foo"}]), "operator: is 'Foo'; write one of Equal Exists Gt Lt"),
    (asking(containers=[{"ports": [{"hostPort": 70_000}]}]), "hostPort: 70000 is out of range"),
    (asking(containers=[{"ports": [{"hostPort": "80"}]}]), "hostPort: is a string, '80'"),
    (asking(overhead={"c\npu": "1\n"}), r"overhead.c\npu: '1\n' is not a Kubernetes quantity"),
    (asking(tolerations=[5]), "tolerations[0]: is a whole number, '5'; write a JSON object"),
    ([case(services={"a": 1})], "one.services: is an object"),
]


@pytest.mark.parametrize(("content", "expected"), WRONG)
def test_wrong_cases_get_one_line(
    content: object, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "cases.json", content)
    code, out, err = run(capsys, "--input", str(path), "--json")
    assert (code, out) == (2, "")
    assert err.startswith(f"shoal: {path}: ")
    assert expected in err
    assert err.count("\n") == 1


def test_wrong_files_and_scorers_get_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write(tmp_path / "cases.json", [case()])
    broken = tmp_path / "broken.gz"
    broken.write_bytes(gzip.compress(b"[]" * 99)[:20])
    binary = tmp_path / "binary"
    binary.write_bytes(b'["\xff"]')
    for argv, expected in [
        (["--input", str(tmp_path / "none.json")], "no such file"),
        (["--input", str(tmp_path)], "is a directory"),
        (["--input", str(broken)], "broken gzip"),
        (["--input", str(binary)], "not UTF-8"),
        (["--input", str(good), "--scorer", "kube@1.30"], "--scorer: 'kube@1.30': is neither a scorer"),
        ([], "Missing option '--input'"),
    ]:
        code, out, err = run(capsys, *argv)
        assert (code, out) == (2, "")
        assert expected in err
        assert err.count("\n") == 1
