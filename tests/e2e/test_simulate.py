# SPDX-License-Identifier: Apache-2.0
"""`shoal simulate` as a user runs it: the same bits on any number of workers; Ctrl-C, and on again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path

import pytest

from shoal_common.policy import PolicyArtifact

pytestmark = pytest.mark.e2e

SHOAL = [sys.executable, "-c", "from shoal_common.cli import main; main()", "simulate"]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four tiny clusters: the embedded small fleet twice."""
    text = (files("shoal_simulations") / "fleets" / "small.toml").read_text()
    begin, end = text.index("[[clusters]]"), text.index("[learning]")
    again = text[begin:end].replace('"left"', '"left-too"').replace('"right"', '"right-too"')
    path = tmp_path_factory.mktemp("fleet") / "four.toml"
    path.write_text(text[:end] + again + text[end:].replace("rounds = 2", "rounds = 6"))
    return path


def command(fleet: Path, out: Path, *options: str) -> list[str]:
    return [*SHOAL, "--fleet", str(fleet), "--seed", "5", "--out", str(out), "--json", *options]


def simulate(fleet: Path, out: Path, *options: str) -> dict[str, object]:
    done = subprocess.run(
        command(fleet, out, *options), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, object] = json.loads(done.stdout)  # exactly one document
    return document


@pytest.fixture(scope="module")
def one_worker(fleet: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    out = tmp_path_factory.mktemp("run") / "one"
    return out, simulate(fleet, out)


@pytest.mark.parametrize("workers", ["2", "4"])
def test_any_number_of_workers_gives_the_same_bits(
    workers: str, fleet: Path, one_worker: tuple[Path, dict[str, object]], tmp_path: Path
) -> None:
    summary = simulate(fleet, tmp_path / "run", "--workers", workers)
    for key in ("parameters_sha256", "epsilon", "clusters"):
        assert summary[key] == one_worker[1][key]


def test_everything_is_written(one_worker: tuple[Path, dict[str, object]]) -> None:
    out, summary = one_worker
    assert json.loads((out / "summary.json").read_text()) == summary
    assert (out / "report.html").read_text().startswith("<!doctype html>")
    artifact = PolicyArtifact.load(out / "policy")
    assert artifact.manifest["privacy"]["epsilon"] == summary["epsilon"]
    assert artifact.manifest["digest"] == summary["policy_digest"]
    assert len(list((out / "clusters").glob("*/ledger.jsonl"))) == 4


def _descendants(pid: int) -> set[int]:
    """Processes whose ancestor is `pid`, from /proc."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        parents[int(entry.parent.name)] = int(fields[1])
    found, frontier = set(), {pid}
    while frontier:
        frontier = {child for child, parent in parents.items() if parent in frontier}
        found |= frontier
    return found


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def _heed_ctrl_c() -> None:
    """Undo the "ignore" that a job in the background inherits."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_leaves_a_resumable_run_and_no_process(
    fleet: Path, one_worker: tuple[Path, dict[str, object]], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(
        command(fleet, out, "--workers", "2"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_heed_ctrl_c,  # noqa: PLW1509 (nothing but a system call)
    )
    assert process.stderr is not None
    line = next(line for line in process.stderr if line.startswith("round 2/"))
    children = _descendants(process.pid)
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 130, line + rest
    assert "the same command goes on from there" in rest
    assert rest.rstrip().endswith("shoal: interrupted")
    assert "Traceback" not in rest
    deadline = time.monotonic() + 10
    while any(map(_alive, children)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert children
    assert not any(map(_alive, children))
    assert not (out / "summary.json").exists()
    resumed = simulate(fleet, out, "--workers", "2")
    assert resumed["parameters_sha256"] == one_worker[1]["parameters_sha256"]
    assert resumed["epsilon"] == one_worker[1]["epsilon"]
