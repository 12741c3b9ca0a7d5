# SPDX-License-Identifier: Apache-2.0
"""The virtual scheduler against the API and a scripted extender, with what a real one was measured to do."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from shoal_common.kube.profile import DEFAULT_FILTERS, Profile
from shoal_simulations.control_plane import (
    ApiServer,
    Configuration,
    Scheduler,
    Stanza,
    node,
    pod,
    read_configuration,
)
from shoal_simulations.control_plane.queue import Queue

Reply = tuple[int, Any]
Script = Callable[[str, Any], Reply]


class Stub:
    """An extender whose answers a test scripts; `calls` holds (verb, request)."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.script: Script = lambda verb, asked: (200, keep_all(verb, asked))
        self.stalled = threading.Event()
        self.headers: Mapping[str, str] = {}

    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.calls]


def keep_all(verb: str, asked: Any) -> Any:
    if verb == "filter":
        return {"NodeNames": asked["NodeNames"], "Nodes": asked["Nodes"]}
    return [] if verb == "prioritize" else {}


def favour(name: str, score: Any) -> Script:
    def script(verb: str, asked: Any) -> Reply:
        if verb == "prioritize":
            return 200, [{"Host": n, "Score": score if n == name else 0} for n in asked["NodeNames"]]
        return 200, keep_all(verb, asked)

    return script


@pytest.fixture
def stub() -> Iterator[Stub]:
    found = Stub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            verb = self.path.rsplit("/", 1)[-1]
            found.calls.append((verb, asked))
            found.headers = dict(self.headers.items())
            code, answer = found.script(verb, asked)
            if code == 0:
                found.stalled.wait(5)
            raw = b"" if answer is None else json.dumps(answer).encode()
            self.send_response(code or 200)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_port}/ext"  # type: ignore[attr-defined]
    yield found
    found.stalled.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as server:
        for name in ("n1", "n2", "n3"):
            server.create("nodes", node(name, cpu="4", labels={"gpu": "yes"} if name == "n3" else {}))
        yield server


def stanza(stub: Any, **more: Any) -> Stanza:
    fields: dict[str, Any] = {
        "url_prefix": stub.url,
        "filter_verb": "filter",
        "prioritize_verb": "prioritize",
        "timeout_seconds": 5.0,
        "node_cache_capable": True,
        **more,
    }
    return Stanza(**fields)


def patience(answer: Reply) -> float:
    """A short time-out for an answer that never comes, a long one for others: the machine may be busy."""
    return 5.0 if answer[0] else 0.2


def scheduler(api: ApiServer, *extenders: Stanza, **more: Any) -> Scheduler:
    return Scheduler(api.url, Configuration(extenders, **more), initial_backoff=0.05)


def bound(api: ApiServer, name: str = "p") -> str:
    assert api.wait(lambda: bool(api.get("pods", name)["spec"].get("nodeName"))), api.get("pods", name)
    return str(api.get("pods", name)["spec"]["nodeName"])


def refused(api: ApiServer, name: str = "p") -> tuple[str, str]:
    """Reason and message of the pod's condition, once it is there."""

    def condition() -> dict[str, Any]:
        conditions = api.get("pods", name)["status"].get("conditions") or [{}]
        return dict(conditions[0])

    assert api.wait(lambda: condition().get("status") == "False")
    return condition()["reason"], condition()["message"]


def test_the_default_profile_spreads(api: ApiServer) -> None:
    with scheduler(api):
        for index in range(6):
            api.create("pods", pod(f"p{index}", cpu="500m"))
            bound(api, f"p{index}")
    counts = [p["spec"]["nodeName"] for p in api.objects("pods")]
    assert {name: counts.count(name) for name in ("n1", "n2", "n3")} == {"n1": 2, "n2": 2, "n3": 2}


def test_what_fits_nowhere_is_said_and_tried_when_there_is_room(api: ApiServer) -> None:
    with scheduler(api):
        api.create("pods", pod("p", cpu="6"))
        assert refused(api) == ("Unschedulable", "0/3 nodes are available: 3 Insufficient cpu.")
        api.create("nodes", node("big", cpu="8"))
        assert bound(api) == "big"
    assert [(e["reason"], e["type"]) for e in api.objects("events.events.k8s.io")] == [
        ("FailedScheduling", "Warning"),
        ("Scheduled", "Normal"),
    ] or len(api.objects("events.events.k8s.io")) == 2


def test_a_deleted_pod_makes_room(api: ApiServer) -> None:
    for name in ("n1", "n2", "n3"):
        api.create("pods", pod(f"on-{name}", cpu="4", node_name=name))
    with scheduler(api):
        api.create("pods", pod("p", cpu="1"))
        refused(api)
        api.delete("pods", "on-n2", grace=0)
        assert bound(api) == "n2"


def test_a_resize_of_a_pending_pod_is_tried_at_once(api: ApiServer) -> None:
    with scheduler(api):
        api.create("pods", pod("p", cpu="500"))
        refused(api)
        small = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]}}
        api.patch("pods", "p", small, kind="strategic", subresource="resize")
        bound(api)


def test_gates_keep_the_scheduler_away(api: ApiServer) -> None:
    with scheduler(api) as running:
        api.create("pods", pod("gated", gates=["shoal.dev/placement"]))
        api.create("pods", pod("free"))
        bound(api, "free")
        assert [attempt.pod for attempt in running.attempts] == ["free"]
        api.patch("pods", "gated", {"spec": {"nodeSelector": {"kubernetes.io/hostname": "n2"}}})
        api.patch("pods", "gated", {"spec": {"schedulingGates": []}})
        assert bound(api, "gated") == "n2"


def test_other_schedulers_pods_are_left_alone(api: ApiServer) -> None:
    with scheduler(api) as running:
        api.create("pods", pod("theirs", spec={"schedulerName": "other"}))
        api.create("pods", pod("ours"))
        bound(api, "ours")
        assert [attempt.pod for attempt in running.attempts] == ["ours"]


def test_priority_goes_first() -> None:
    queue = Queue()
    for uid, priority, at in (("low", 0, 0.0), ("late", 5, 2.0), ("first", 5, 1.0)):
        queue.add(uid, priority, at)
    order = []
    while (waiting := queue.pop(3.0)) is not None:
        order.append(waiting.uid)
    assert order == ["first", "late", "low"]


def test_backoff_doubles_and_events_wake() -> None:
    queue = Queue()
    queue.add("p", 0, 0.0)
    delays = []
    now = 0.0
    for _ in range(6):
        waiting = queue.pop(now)
        assert waiting
        queue.refused(waiting, now, error=True, any_event=False)
        due = queue.next_at()
        assert due is not None
        delays.append(due - now)
        now = due
    assert delays == [1, 2, 4, 8, 10, 10]
    waiting = queue.pop(now)
    assert waiting
    queue.refused(waiting, now, error=False, any_event=False)
    assert queue.next_at() is None
    queue.wake(makes_room=False)
    assert queue.next_at() is None
    queue.wake(makes_room=True)
    assert queue.next_at() == now + 10


def test_what_happens_during_an_attempt_is_not_missed() -> None:
    queue = Queue()
    queue.add("p", 0, 0.0)
    waiting = queue.pop(0.0)
    assert waiting
    queue.wake(makes_room=True)
    queue.refused(waiting, 0.0, error=False, any_event=False)
    assert queue.next_at() == 1.0


def test_the_request_is_what_a_real_scheduler_sends(api: ApiServer, stub: Any) -> None:
    with scheduler(api, stanza(stub)):
        api.create("pods", pod("p"))
        bound(api)
    assert stub.verbs() == ["filter", "prioritize"]
    filtered = stub.calls[0][1]
    assert set(filtered) == {"Pod", "Nodes", "NodeNames"}
    assert (filtered["Nodes"], sorted(filtered["NodeNames"])) == (None, ["n1", "n2", "n3"])
    assert set(filtered["Pod"]) == {"metadata", "spec", "status"}
    assert stub.headers["User-Agent"] == "Go-http-client/1.1"
    assert stub.headers["Content-Type"] == "application/json"


def test_full_nodes_are_sent_where_the_extender_keeps_no_cache(api: ApiServer, stub: Any) -> None:
    with scheduler(api, stanza(stub, node_cache_capable=False)):
        api.create("pods", pod("p"))
        bound(api)
    asked = stub.calls[0][1]
    assert asked["NodeNames"] is None
    assert {item["metadata"]["name"] for item in asked["Nodes"]["items"]} == {"n1", "n2", "n3"}
    assert "kind" not in asked["Nodes"]["items"][0]


def test_full_nodes_come_back_without_their_load(api: ApiServer, stub: Any) -> None:
    """kubernetes#141781: after such a filter NodeResourcesFit sees every node empty."""
    api.create("pods", pod("load", cpu="3800m", node_name="n1"))
    totals = {}
    for capable in (True, False):
        with scheduler(api, stanza(stub, node_cache_capable=capable)) as running:
            api.create("pods", pod(f"p-{capable}", labels={"of": "test"}))
            bound(api, f"p-{capable}")
            totals[capable] = running.attempts[-1].totals
        api.delete("pods", f"p-{capable}", grace=0)
    assert totals[True]["n1"] < totals[True]["n2"]
    assert totals[False]["n1"] == totals[False]["n2"]


def test_scores_are_scaled_and_never_clamped(api: ApiServer, stub: Any) -> None:
    for weight, score, gain in ((1, 10, 100), (3, 7, 210), (1, 100, 1000), (1, -50, -500)):
        stub.script = favour("n1", score)
        with scheduler(api, stanza(stub, weight=weight)) as running:
            api.create("pods", pod("p"))
            bound(api)
            totals = running.attempts[-1].totals
        api.delete("pods", "p", grace=0)
        assert totals["n1"] - totals["n2"] == gain


def test_an_extender_decides_where_scores_are_switched_off(api: ApiServer, stub: Any) -> None:
    stub.script = favour("n2", 1)
    with scheduler(api, stanza(stub), profiles={"default-scheduler": Profile(DEFAULT_FILTERS, ())}):
        api.create("pods", pod("p"))
        assert bound(api) == "n2"


@pytest.mark.parametrize(
    "answer",
    [
        (0, []),
        (500, []),
        (200, [{"Host": "n2", "Score": 9.5}]),
        (200, [{"Host": "n2", "Score": "9"}]),
        (200, {}),
        (200, "text"),
        (200, [{"Host": "elsewhere", "Score": 9}]),
        (200, []),
        (200, None),
    ],
)
@pytest.mark.parametrize("ignorable", [True, False])
def test_bad_scores_change_nothing(api: ApiServer, stub: Any, answer: Reply, ignorable: bool) -> None:
    stub.script = lambda verb, asked: answer if verb == "prioritize" else (200, keep_all(verb, asked))
    with scheduler(api, stanza(stub, ignorable=ignorable, timeout_seconds=patience(answer))) as running:
        api.create("pods", pod("p"))
        bound(api)
        assert len(set(running.attempts[-1].totals.values())) == 1


def test_left_out_nodes_get_nothing(api: ApiServer, stub: Any) -> None:
    stub.script = lambda verb, asked: (
        (200, [{"host": "n3", "score": 4}]) if verb == "prioritize" else (200, keep_all(verb, asked))
    )
    with scheduler(api, stanza(stub)):
        api.create("pods", pod("p"))
        assert bound(api) == "n3"


FILTER_FAULTS: list[tuple[Reply, str]] = [
    ((0, {}), "context deadline exceeded"),
    ((500, {}), "failed filter with extender at URL"),
    ((204, None), "code 204"),
    ((200, {"Error": "policy not loaded"}), "policy not loaded"),
    ((200, {"NodeNames": ["elsewhere"]}), "which is not found in the input node list"),
]


@pytest.mark.parametrize(("answer", "text"), FILTER_FAULTS)
def test_filter_faults_are_skipped_where_ignorable(
    api: ApiServer, stub: Any, answer: Reply, text: str
) -> None:
    stub.script = lambda verb, asked: answer if verb == "filter" else (200, [])
    with scheduler(api, stanza(stub, ignorable=True, timeout_seconds=patience(answer))) as running:
        api.create("pods", pod("p"))
        bound(api)
        assert text in running.attempts[-1].ignored[0]


@pytest.mark.parametrize(("answer", "text"), FILTER_FAULTS)
def test_filter_faults_fail_the_pod_otherwise(api: ApiServer, stub: Any, answer: Reply, text: str) -> None:
    stub.script = lambda verb, asked: answer if verb == "filter" else (200, [])
    with scheduler(api, stanza(stub, timeout_seconds=patience(answer))):
        api.create("pods", pod("p"))
        reason, message = refused(api)
        assert reason == "SchedulerError"
        assert text in message
        assert api.wait(lambda: len(stub.calls) > 1)  # tried again by itself


@pytest.mark.parametrize("ignorable", [True, False])
def test_an_empty_answer_to_filter_is_no_node_and_no_error(
    api: ApiServer, stub: Any, ignorable: bool
) -> None:
    stub.script = lambda verb, asked: (200, {})
    with scheduler(api, stanza(stub, ignorable=ignorable)):
        api.create("pods", pod("p"))
        assert refused(api) == ("Unschedulable", "0/3 nodes are available: .")


def test_refusals_are_counted_in_the_message_and_any_event_wakes(api: ApiServer, stub: Any) -> None:
    stub.script = lambda verb, asked: (
        200,
        {"NodeNames": [], "FailedNodes": dict.fromkeys(asked["NodeNames"], "no slice is free")},
    )
    with scheduler(api, stanza(stub)):
        api.create("pods", pod("p"))
        assert refused(api) == ("Unschedulable", "0/3 nodes are available: 3 no slice is free.")
        stub.script = lambda verb, asked: (200, keep_all(verb, asked))
        api.patch("nodes", "n1", {"metadata": {"annotations": {"x": "y"}}})
        bound(api)


def test_one_feasible_node_is_not_scored(api: ApiServer, stub: Any) -> None:
    with scheduler(api, stanza(stub)) as running:
        api.create("pods", pod("p", spec={"nodeSelector": {"gpu": "yes"}}))
        assert bound(api) == "n3"
        assert not running.attempts[-1].scored
    assert stub.verbs() == ["filter"]


def test_no_feasible_node_no_call(api: ApiServer, stub: Any) -> None:
    with scheduler(api, stanza(stub)):
        api.create("pods", pod("p", cpu="100"))
        refused(api)
    assert stub.calls == []


def test_managed_resources_choose_the_pods(api: ApiServer, stub: Any) -> None:
    mig = "nvidia.com/mig-1g.5gb"
    for name in ("m1", "m2"):
        api.create("nodes", node(name, resources={mig: 7}))
    with scheduler(api, stanza(stub, managed_resources=(mig,))):
        api.create("pods", pod("plain"))
        bound(api, "plain")
        assert stub.calls == []
        api.create("pods", pod("slice", resources={mig: 1}))
        bound(api, "slice")
    assert stub.verbs() == ["filter", "prioritize"]


def test_an_extender_may_bind(api: ApiServer, stub: Any) -> None:
    def script(verb: str, asked: Any) -> Reply:
        if verb == "bind":
            assert set(asked) == {"PodName", "PodNamespace", "PodUID", "Node"}
            api.bind(asked["PodName"], asked["Node"])
        return 200, keep_all(verb, asked)

    stub.script = script
    with scheduler(api, stanza(stub, bind_verb="bind")):
        api.create("pods", pod("p"))
        bound(api)


@pytest.mark.parametrize("answer", [(0, {}), (200, {"Error": "no"})])
def test_a_failed_bind_falls_to_the_default_where_ignorable(api: ApiServer, stub: Any, answer: Reply) -> None:
    stub.script = lambda verb, asked: answer if verb == "bind" else (200, keep_all(verb, asked))
    with scheduler(api, stanza(stub, bind_verb="bind", ignorable=True, timeout_seconds=patience(answer))):
        api.create("pods", pod("p"))
        bound(api)


def test_a_failed_bind_is_tried_again_otherwise(api: ApiServer, stub: Any) -> None:
    stub.script = lambda verb, asked: (200, {"Error": "no"} if verb == "bind" else keep_all(verb, asked))
    with scheduler(api, stanza(stub, bind_verb="bind")):
        api.create("pods", pod("p"))
        assert refused(api) == ("SchedulerError", "no")
        assert api.wait(lambda: stub.verbs().count("bind") > 1)


def test_only_a_sample_of_a_large_cluster_is_sent(stub: Any) -> None:
    with ApiServer() as api:
        for index in range(150):
            api.create("nodes", node(f"n{index:03}"))
        with scheduler(api, stanza(stub)):
            api.create("pods", pod("p"))
            bound(api)
    assert len(stub.calls[-1][1]["NodeNames"]) == 100


def test_a_configuration_file_gives_the_extenders(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.yaml"
    path.write_text(
        """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- {schedulerName: other, percentageOfNodesToScore: 50, plugins: {score: {disabled: [{name: "*"}]}}}
extenders:
- {urlPrefix: "http://127.0.0.1:1", prioritizeVerb: prioritize, weight: 15, httpTimeout: 200ms,
   nodeCacheCapable: true, ignorable: true, managedResources: [{name: x.dev/gpu}]}
"""
    )
    found = read_configuration(path)
    assert (list(found.profiles), found.percentage) == (["other"], 50)
    assert found.profiles["other"].scores == ()
    assert found.extenders == (
        Stanza(
            url_prefix="http://127.0.0.1:1",
            prioritize_verb="prioritize",
            weight=15,
            timeout_seconds=0.2,
            node_cache_capable=True,
            ignorable=True,
            managed_resources=("x.dev/gpu",),
        ),
    )


def test_the_scheduler_outlives_the_api(api: ApiServer) -> None:
    with scheduler(api):
        api.create("pods", pod("before"))
        bound(api, "before")
        api.down()
        api.create("pods", pod("meanwhile"))
        api.up()
        bound(api, "meanwhile")
