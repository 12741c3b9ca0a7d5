# SPDX-License-Identifier: Apache-2.0
"""The informer against the emulated API over HTTP: what it asks, and what it survives."""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal_client.kube.api import Api, connect
from shoal_client.metrics import REGISTRY
from shoal_client.state.informer import KINDS, Informer, InformerSettings
from shoal_client.state.live import LiveCluster, PodChange
from shoal_simulations.control_plane import ApiServer, node, pod

FAST = InformerSettings(
    watch_seconds=5, silent_seconds=6.0, page=4, first_backoff_seconds=0.02, longest_backoff_seconds=0.1
)
PODS = "/api/v1/pods"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        for i in range(3):
            server.create("nodes", node(f"n{i}"))
        for i in range(10):
            server.create("pods", pod(f"p{i}"))
        yield server


@pytest.fixture
def api(server: ApiServer, tmp_path: Path) -> Api:
    return connect(server.kubeconfig(tmp_path / "kubeconfig"))


def eventually(holds: Callable[[], bool], seconds: float = 15.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds()


def names(live: LiveCluster) -> set[str]:
    return {pod.name for pod in list(live.pods.values())}


def queries(server: ApiServer, path: str = PODS) -> list[dict[str, str]]:
    return [dict(request.query) for request in server.requests if request.path == path]


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def relists(reason: str) -> float:
    return counted("shoal_relists_total", kind="Pod", reason=reason)


@pytest.fixture
def live(api: Api) -> Iterator[LiveCluster]:
    """A state that an informer keeps, synced."""
    live = LiveCluster()
    with Informer(api, live, FAST) as informer:
        assert informer.wait_synced(15)
        yield live


def test_changes_arrive_and_readers_see_them(server: ApiServer, live: LiveCluster) -> None:
    told: list[PodChange] = []
    live.subscribe(told.append)
    assert names(live) == {f"p{i}" for i in range(10)}
    server.bind("p1", "n1")
    assert eventually(lambda: live.cluster.use[live.row("n1"), 3] == 1)
    server.delete("pods", "p2")
    assert eventually(lambda: "p2" not in names(live))
    assert [c.after.node_name for c in told if c.after and c.after.name == "p1"][-1] == "n1"
    assert live.staleness_seconds("Pod") < 15


@pytest.mark.parametrize("gone_status", [False, True])
def test_case_26_a_gone_version_is_listed_again_and_what_vanished_is_deleted(
    server: ApiServer, live: LiveCluster, gone_status: bool
) -> None:
    told: list[PodChange] = []
    live.subscribe(told.append)
    before = relists("gone")
    server.down()
    server.delete("pods", "p3")
    server.delete("pods", "p4")
    server.create("pods", pod("new"))
    server.compact(gone_status=gone_status)
    server.up()
    assert eventually(lambda: names(live) == {"p0", "p1", "p2", "p5", "p6", "p7", "p8", "p9", "new"})
    assert {c.before.name for c in told if c.before and c.after is None} == {"p3", "p4"}
    assert relists("gone") > before
    assert eventually(lambda: "watch" in queries(server)[-1])
    asked = queries(server)
    listed = next(i for i, q in reversed(list(enumerate(asked))) if "watch" not in q)
    version = max(int(p["metadata"]["resourceVersion"]) for p in server.objects("pods"))
    assert int(asked[listed + 1]["resourceVersion"]) >= version
    assert not any(q.get("resourceVersion") == "None" for q in asked)


def test_case_27_gone_three_times_in_a_row_is_survived_with_a_growing_pause(
    server: ApiServer, live: LiveCluster
) -> None:
    before = counted("shoal_watch_errors_total", kind="Pod", reason="gone")
    server.error(410, 3, PODS)
    server.end_watches()
    assert eventually(lambda: counted("shoal_watch_errors_total", kind="Pod", reason="gone") == before + 3)
    server.create("pods", pod("after"))
    assert eventually(lambda: "after" in names(live))
    server.create("pods", pod("later"))
    assert eventually(lambda: "later" in names(live))


def test_case_27_a_bookmark_only_moves_the_version(tmp_path: Path) -> None:
    with ApiServer(bookmark_seconds=0.2) as server:
        server.create("pods", pod("p0"))
        live = LiveCluster()
        told: list[PodChange] = []
        live.subscribe(told.append)
        with Informer(connect(server.kubeconfig(tmp_path / "k")), live, FAST) as informer:
            assert informer.wait_synced(15)
            for i in range(5):
                server.create("configmaps", {"metadata": {"name": f"c{i}"}})  # versions go by
            newest = int(server.get("configmaps", "c4")["metadata"]["resourceVersion"])
            time.sleep(0.5)
            server.end_watches()
            assert eventually(lambda: int(queries(server)[-1].get("resourceVersion") or 0) >= newest)
        assert len(told) == 1


def test_case_28_a_silent_stream_is_given_up(server: ApiServer, api: Api) -> None:
    assert 0 < InformerSettings().watch_seconds < InformerSettings().silent_seconds <= 300
    settings = InformerSettings(watch_seconds=1, silent_seconds=1.5, first_backoff_seconds=0.02)
    live = LiveCluster()
    with Informer(api, live, settings) as informer:
        assert informer.wait_synced(15)
        server.silence_watches()
        time.sleep(0.1)
        server.create("pods", pod("unheard"))
        assert eventually(lambda: live.staleness_seconds("Pod") > 1.2)  # whoever asks can tell
        server.restore_watches()
        assert eventually(lambda: "unheard" in names(live))
        assert live.staleness_seconds("Pod") < 1
    assert counted("shoal_watch_last_event_timestamp_seconds", kind="Pod") > time.time() - 60


def test_case_31_the_first_list_is_cheap_and_an_old_server_gets_pages(server: ApiServer, api: Api) -> None:
    with Informer(api, LiveCluster(), FAST) as informer:
        assert informer.wait_synced(15)
    (first, *_), version = queries(server), {"resourceVersion": "0"}
    assert first["sendInitialEvents"] == "true"
    assert version.items() <= first.items()
    server.error(422, 1, PODS)
    count = len(server.requests)
    live = LiveCluster()
    with Informer(api, live, FAST) as informer:
        assert informer.wait_synced(15)
    assert len(live.pods) == 10
    asked = [dict(r.query) for r in server.requests[count:] if r.path == PODS][1:4]
    assert [q["limit"] for q in asked] == ["4", "4", "4"]
    assert ["continue" in q for q in asked] == [False, True, True]


def test_case_31_memory_is_bounded_by_the_records_not_by_the_list(tmp_path: Path) -> None:
    filler = {f"private.example/{i}": "x" * 200 for i in range(20)}  # 5 kB that scheduling does not read
    with ApiServer() as server:
        server.create("nodes", node("n0"))
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs"}
        for i in range(400):
            server.create("pods", pod(f"p{i}", annotations=filler, owner=owner))
        live = LiveCluster()
        informer = Informer(connect(server.kubeconfig(tmp_path / "k")), live, FAST)
        tracemalloc.start()
        try:
            with informer:
                assert informer.wait_synced(30)
                held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert len(live.pods) == 400
    assert held < 400 * 5_000 / 2  # server and client together, far below the objects' own size


def test_an_api_that_goes_away_is_found_again(server: ApiServer, live: LiveCluster) -> None:
    before = relists("first") + relists("gone")
    server.down()
    time.sleep(0.3)
    assert len(live.pods) == 10  # what was known stays
    server.create("pods", pod("meanwhile"))
    server.up()
    assert eventually(lambda: "meanwhile" in names(live))
    assert relists("first") + relists("gone") == before  # the watch goes on from where it was


def test_an_api_that_is_away_at_the_start_is_waited_for(server: ApiServer, api: Api) -> None:
    server.down()
    live = LiveCluster()
    with Informer(api, live, FAST) as informer:
        assert not informer.wait_synced(0.2)
        server.up()
        assert informer.wait_synced(15)


def test_a_kind_that_the_server_lacks_is_no_error(server: ApiServer, api: Api) -> None:
    server.error(404, 2, "noderesourcetopologies")
    live = LiveCluster()
    with Informer(api, live, FAST) as informer:
        assert informer.wait_synced(15)
        assert eventually(lambda: live.staleness_seconds("NodeResourceTopology") < 15)


def test_errors_of_the_server_do_not_end_the_threads(server: ApiServer, live: LiveCluster) -> None:
    server.error(500, 3, PODS)
    server.end_watches()
    server.create("pods", pod("after"))
    assert eventually(lambda: "after" in names(live))


def test_a_watch_that_always_ends_at_once_is_not_asked_in_a_circle(
    server: ApiServer, live: LiveCluster
) -> None:
    count = len(queries(server))
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        server.end_watches()
        time.sleep(0.005)
    assert len(queries(server)) - count < 50


def test_stop_ends_every_thread_at_once(server: ApiServer, api: Api) -> None:
    informer = Informer(api, LiveCluster(), InformerSettings())
    informer.start()
    assert informer.wait_synced(15)
    began = time.monotonic()
    informer.stop()
    assert time.monotonic() - began < 3
    assert not [t for t in threading.enumerate() if t.name.startswith("informer-") and t.is_alive()]
    assert len(KINDS) == 6
