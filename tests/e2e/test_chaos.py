# SPDX-License-Identifier: Apache-2.0
"""What is away or goes wrong, with a live client that serves: scheduling goes on, recovery is by itself.

Outages are seconds long here; what decides is that they outlast the bound on staleness, one second while the
API is away.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal_client.experience.reader import ExperienceReader

sys.path.insert(0, str(Path(__file__).parent))
from live_client import MAIN, World, free_port, served, wait, world

pytestmark = pytest.mark.e2e

SPEC = {
    "mode": "Active",
    "fallback": {"timeoutMs": 2000},
    "drift": {"maxClippedRatio": 1.0},
    "guardrails": {"enabled": False},
}
HOUR_AHEAD = """
import os, time
real = time.time
time.time = lambda: real() + 3600 * os.path.exists({flag!r})
"""


@pytest.fixture(scope="module")
def prometheus_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chaos")


@pytest.fixture(scope="module")
def cluster(folder: Path, prometheus_port: int) -> Iterator[World]:
    """One client for all tests: each leaves it as it found it, or the next one fails."""
    main = HOUR_AHEAD.format(flag=str(folder / "ahead")) + MAIN
    prometheus = f"http://127.0.0.1:{prometheus_port}"
    with world(folder, SPEC, "--prometheus", prometheus, main=main) as made:
        assert wait(lambda: made.condition("Ready").get("reason") == "Active"), made.client.log()
        yield made


@contextmanager
def prometheus(folder: Path, port: int) -> Iterator[None]:
    """A real Prometheus that scrapes nothing; skips where there is none."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed")
    configuration = folder / "prometheus.yml"
    configuration.write_text("global: {scrape_interval: 1s}\n")
    command = [program, f"--config.file={configuration}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log
        )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_without_prometheus_decisions_go_on_and_it_is_found_again(
    cluster: World, folder: Path, prometheus_port: int
) -> None:
    rounds = 'shoal_metrics_rounds_total{result="%s"}'
    assert wait(lambda: cluster.client.metric(rounds % "unavailable") > 0)
    assert served(cluster.place())
    with prometheus(folder, prometheus_port):
        assert wait(lambda: cluster.client.metric(rounds % "ok") > 0, 60.0), cluster.client.log()
        assert served(cluster.place())
    assert served(cluster.place())


def test_a_clock_that_jumps_an_hour_changes_nothing(cluster: World, folder: Path) -> None:
    before = cluster.client.metrics()
    (folder / "ahead").touch()
    attempts = [cluster.place(owner) for owner in range(5)]
    (folder / "ahead").unlink()
    attempts += [cluster.place(owner) for owner in range(5)]
    assert all(map(served, attempts))
    after = cluster.client.metrics()
    assert after["shoal_leader"] == 1
    assert [n for n in after if n.startswith("shoal_relists_total") and after[n] != before.get(n)] == []


def test_without_the_api_answers_turn_neutral_and_return(cluster: World) -> None:
    stale = 'shoal_fallbacks_total{reason="stale"}'
    cluster.apply(fallback={"maxStalenessSeconds": 1})
    cluster.api.down()
    try:
        assert wait(lambda: ask(cluster) == {0}), "answers stay the policy's"
        assert cluster.client.metric(stale) >= 1
        assert cluster.client.ready()
    finally:
        cluster.api.up()
    waiting = cluster.create(0)
    cluster.apply(fallback={"maxStalenessSeconds": 60})
    assert wait(lambda: [a for a in cluster.scheduler.attempts if a.uid == waiting and a.node])
    assert served(cluster.place())


def ask(cluster: World) -> set[int]:
    """The scores that the extender answers for a pod by now."""
    from shoal_simulations.control_plane.extenders import Extender

    extender = Extender(cluster.client.configuration().extenders[0])
    pod = cluster.api.objects("pods")[0]
    pod = {**pod, "spec": {k: v for k, v in pod["spec"].items() if k != "nodeName"}}
    nodes = {n["metadata"]["name"]: n for n in cluster.api.objects("nodes")}
    try:
        return set(extender.prioritize(pod, nodes).values())
    finally:
        extender.close()


def test_kill_9_loses_nothing_that_was_written(cluster: World) -> None:
    for owner in range(10):
        cluster.place(owner)
    store = cluster.client.store
    stop, writer = threading.Event(), None
    try:
        writer = threading.Thread(target=place_until, args=(cluster, stop))
        writer.start()
        before = written(store)
        assert len(before) >= 10
        cluster.client.kill()
    finally:
        stop.set()
        if writer:
            writer.join()
    assert not served(cluster.place()), "nobody is there to answer, the default plugins place it"
    assert before.items() <= written(store).items()
    cluster.client.start()
    assert before.items() <= written(store).items()
    assert wait(lambda: served(cluster.place())), cluster.client.log()
    assert wait(lambda: len(written(store)) > len(before))


def place_until(cluster: World, stop: threading.Event) -> None:
    while not stop.is_set():
        cluster.create(0)
        stop.wait(0.02)


def written(store: Path) -> dict[int, str]:
    """Decisions on disk: their pods by number."""
    with ExperienceReader(store) as reader:
        return {stored.decision.id: stored.decision.uid for stored in reader.rows()}
