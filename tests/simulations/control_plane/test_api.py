# SPDX-License-Identifier: Apache-2.0
"""The emulated API over real HTTP: lists in pages, watches, faults."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPResponse, IncompleteRead
from pathlib import Path
from typing import Any

import pytest

from shoal_simulations.control_plane import ApiError, ApiServer, node, pod

PODS = "/api/v1/pods"


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer(bookmark_seconds=0.1) as server:
        yield server


def get(api: ApiServer, path: str) -> Any:
    with urllib.request.urlopen(api.url + path, timeout=30) as answer:
        return json.load(answer)


def refused(api: ApiServer, path: str) -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as caught:
        get(api, path)
    with caught.value as error:
        return error.code, json.loads(error.read())["reason"]


def names(document: Any) -> list[str]:
    return [item["metadata"]["name"] for item in document["items"]]


class Stream:
    """An open watch whose events can be read one by one."""

    def __init__(self, api: ApiServer, query: str, path: str = PODS, timeout: float = 30) -> None:
        self.connection = HTTPConnection(api.url.removeprefix("http://"), timeout=timeout)
        self.connection.request("GET", f"{path}?watch=1&{query}")
        self.answer: HTTPResponse = self.connection.getresponse()

    def close(self) -> None:
        self.answer.close()
        self.connection.close()

    def next(self) -> dict[str, Any]:
        line = self.answer.readline()
        return json.loads(line) if line else {}

    def kinds(self, count: int) -> list[tuple[str, str]]:
        events = [self.next() for _ in range(count)]
        return [(event["type"], event["object"]["metadata"].get("name", "")) for event in events]


Watch = Callable[..., Stream]


@pytest.fixture
def watch(api: ApiServer) -> Iterator[Watch]:
    streams: list[Stream] = []

    def begin(query: str, **options: Any) -> Stream:
        streams.append(Stream(api, query, **options))
        return streams[-1]

    yield begin
    for stream in streams:
        stream.close()


def version(api: ApiServer) -> str:
    return str(get(api, PODS)["metadata"]["resourceVersion"])


def test_pages_show_one_state(api: ApiServer) -> None:
    for name in "abcd":
        api.create("pods", pod(name))
    first = get(api, f"{PODS}?limit=2")
    api.delete("pods", "c")
    api.create("pods", pod("b2"))
    api.patch("pods", "d", {"metadata": {"labels": {"new": "label"}}})
    second = get(api, f"{PODS}?limit=2&continue={first['metadata']['continue']}")
    assert names(first) + names(second) == ["a", "b", "c", "d"]
    assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]
    assert second["items"][1]["metadata"].get("labels") is None
    assert "continue" not in second["metadata"]


def test_a_continue_token_expires(api: ApiServer) -> None:
    for name in "abc":
        api.create("pods", pod(name))
    token = get(api, f"{PODS}?limit=1")["metadata"]["continue"]
    api.compact()
    assert refused(api, f"{PODS}?limit=1&continue={token}") == (410, "Expired")


def test_the_watch_cache_knows_no_pages(api: ApiServer) -> None:
    for name in "abc":
        api.create("pods", pod(name))
    listed = get(api, f"{PODS}?limit=1&resourceVersion=0")
    assert names(listed) == ["a", "b", "c"]
    assert "continue" not in listed["metadata"]


def test_selectors(api: ApiServer) -> None:
    api.create("pods", pod("a", labels={"app": "web", "tier": "1"}, node_name="n1"))
    api.create("pods", pod("b", labels={"app": "db"}))
    for query, wanted in (
        ("labelSelector=app", ["a", "b"]),
        ("labelSelector=app!%3Dweb", ["b"]),
        ("labelSelector=app+in+(web,db),tier", ["a"]),
        ("labelSelector=!tier", ["b"]),
        ("fieldSelector=spec.nodeName%3Dn1", ["a"]),
        ("fieldSelector=spec.nodeName!%3Dn1,status.phase%3DPending", ["b"]),
    ):
        assert names(get(api, f"{PODS}?{query}")) == wanted, query


def test_a_watch_goes_on_from_a_version(api: ApiServer, watch: Watch) -> None:
    api.create("pods", pod("old"))
    stream = watch(f"resourceVersion={version(api)}")
    api.create("pods", pod("new"))
    api.patch("pods", "new", {"metadata": {"labels": {"x": "y"}}})
    api.delete("pods", "new")
    assert stream.kinds(3) == [("ADDED", "new"), ("MODIFIED", "new"), ("DELETED", "new")]


def test_a_watch_without_version_begins_with_what_is_there(api: ApiServer, watch: Watch) -> None:
    api.create("pods", pod("old"))
    assert watch("resourceVersion=0").kinds(1) == [("ADDED", "old")]


def test_initial_events_end_with_a_bookmark(api: ApiServer, watch: Watch) -> None:
    api.create("pods", pod("old"))
    query = "sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"
    stream = watch(query)
    assert stream.kinds(1) == [("ADDED", "old")]
    mark = stream.next()
    assert mark["type"] == "BOOKMARK"
    assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_bookmarks_move_the_version(api: ApiServer, watch: Watch) -> None:
    stream = watch(f"resourceVersion={version(api)}&allowWatchBookmarks=true")
    api.create("nodes", node("n1"))
    mark = stream.next()
    assert mark["type"] == "BOOKMARK"
    while int(mark["object"]["metadata"]["resourceVersion"]) < int(version(api)):
        mark = stream.next()


def test_an_object_enters_and_leaves_a_selection(api: ApiServer, watch: Watch) -> None:
    api.create("pods", pod("a"))
    stream = watch(f"resourceVersion={version(api)}&labelSelector=app%3Dweb")
    api.patch("pods", "a", {"metadata": {"labels": {"app": "web"}}})
    api.patch("pods", "a", {"metadata": {"labels": {"app": "db"}}})
    api.delete("pods", "a")
    api.create("pods", pod("b", labels={"app": "web"}))
    assert stream.kinds(3) == [("ADDED", "a"), ("DELETED", "a"), ("ADDED", "b")]


def test_an_old_watch_gets_410_as_an_event(api: ApiServer, watch: Watch) -> None:
    old = version(api)
    api.create("pods", pod("a"))
    api.compact()
    stream = watch(f"resourceVersion={old}")
    error = stream.next()
    assert (error["type"], error["object"]["code"], error["object"]["reason"]) == ("ERROR", 410, "Expired")
    assert stream.next() == {}


def test_an_old_watch_gets_410_as_a_status(api: ApiServer) -> None:
    old = version(api)
    api.compact(gone_status=True)
    assert refused(api, f"{PODS}?watch=1&resourceVersion={old}") == (410, "Expired")


def test_an_open_watch_survives_compaction(api: ApiServer, watch: Watch) -> None:
    stream = watch(f"resourceVersion={version(api)}")
    api.create("pods", pod("a"))
    assert stream.kinds(1) == [("ADDED", "a")]
    api.compact()
    api.create("pods", pod("b"))
    assert stream.kinds(1) == [("ADDED", "b")]


def test_a_watch_ends_in_time(api: ApiServer, watch: Watch) -> None:
    assert watch(f"resourceVersion={version(api)}&timeoutSeconds=1").next() == {}


def test_watches_end_on_demand(api: ApiServer, watch: Watch) -> None:
    stream = watch(f"resourceVersion={version(api)}")
    api.end_watches()
    assert stream.next() == {}


def test_silent_watches_say_nothing_and_stay_dead(api: ApiServer, watch: Watch) -> None:
    stream = watch(f"resourceVersion={version(api)}&allowWatchBookmarks=true&timeoutSeconds=1", timeout=1.3)
    api.silence_watches()
    api.create("pods", pod("a"))
    api.restore_watches()
    with pytest.raises(TimeoutError):
        stream.next()
    assert watch("resourceVersion=0").kinds(1) == [("ADDED", "a")]


def test_a_server_that_is_away_comes_back_on_its_port(api: ApiServer, watch: Watch) -> None:
    api.create("pods", pod("a"))
    url, stream = api.url, watch(f"resourceVersion={version(api)}")
    api.down()
    with pytest.raises((IncompleteRead, OSError)):
        stream.answer.read()
    with pytest.raises(urllib.error.URLError):
        get(api, PODS)
    api.up()
    assert (api.url, names(get(api, PODS))) == (url, ["a"])


def test_errors_and_delays_on_demand(api: ApiServer) -> None:
    api.error(503, 1, path="/pods")
    assert names(get(api, "/api/v1/nodes")) == []
    assert refused(api, PODS)[0] == 503
    assert names(get(api, PODS)) == []
    api.delay(0.2)
    begin = time.monotonic()
    get(api, PODS)
    assert time.monotonic() - begin >= 0.2


def test_what_is_denied_is_refused_and_reviewed(api: ApiServer) -> None:
    api.deny("list", "pods")
    assert refused(api, PODS) == (403, "Forbidden")
    body = {"spec": {"resourceAttributes": {"verb": "list", "resource": "pods"}}}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    request = urllib.request.Request(api.url + path, json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert json.load(answer)["status"] == {"allowed": False}


def test_a_kind_can_be_absent(api: ApiServer) -> None:
    path = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies"
    assert names(get(api, path)) == []
    api.unserve("noderesourcetopologies")
    with pytest.raises(urllib.error.HTTPError) as caught:
        get(api, path)
    with caught.value as error:
        assert (error.code, error.read()) == (404, b"404 page not found\n")


def test_requests_are_logged(api: ApiServer) -> None:
    request = urllib.request.Request(f"{api.url}{PODS}?limit=3", headers={"User-Agent": "shoal/1"})
    urllib.request.urlopen(request, timeout=30).close()
    logged = api.requests[-1]
    assert (logged.method, logged.path, logged.query, logged.user_agent) == (
        "GET",
        PODS,
        {"limit": "3"},
        "shoal/1",
    )


def test_a_custom_resource_is_served_once_it_is_defined(api: ApiServer) -> None:
    schema = {
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "required": ["mode"],
                "properties": {
                    "mode": {"type": "string", "enum": ["Off", "Shadow"]},
                    "percent": {"type": "integer", "default": 10, "maximum": 100},
                },
            },
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        },
    }
    version = {"name": "v1alpha1", "served": True, "storage": True, "subresources": {"status": {}}}
    names = {"plural": "policies", "kind": "Policy"}
    spec = {"group": "x.dev", "scope": "Cluster", "names": names}
    api.create(
        "customresourcedefinitions",
        {
            "metadata": {"name": "policies.x.dev"},
            "spec": {**spec, "versions": [{**version, "schema": {"openAPIV3Schema": schema}}]},
        },
    )
    api.create("policies", {"metadata": {"name": "a"}, "spec": {"mode": "Off", "unknown": 1}})
    found = get(api, "/apis/x.dev/v1alpha1/policies/a")
    assert found["spec"] == {"mode": "Off", "percent": 10}
    assert found["metadata"]["generation"] == 1
    api.patch("policies", "a", {"status": {"ready": True}}, subresource="status")
    assert api.get("policies", "a")["metadata"]["generation"] == 1
    assert api.patch("policies", "a", {"spec": {"mode": "Shadow"}})["metadata"]["generation"] == 2
    for wrong in ({"mode": "On"}, {}, {"mode": "Off", "percent": 101}, {"mode": 1}):
        with pytest.raises(ApiError, match="spec"):
            api.create("policies", {"metadata": {"name": "b"}, "spec": wrong})


def test_budgets_forbid_evictions(api: ApiServer) -> None:
    budget = {
        "metadata": {"name": "keep"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    }
    api.create("poddisruptionbudgets", budget)
    running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    for name in ("a", "b"):
        api.create("pods", {**pod(name, labels={"app": "web"}, node_name="n1"), "status": running})
    codes = [_post(api, f"/api/v1/namespaces/default/pods/{name}/eviction") for name in ("a", "b")]
    assert codes == [201, 429]
    conditions = api.get("pods", "a")["status"]["conditions"]
    assert conditions[-1]["reason"] == "EvictionByEvictionAPI"


def _post(api: ApiServer, path: str) -> int:
    request = urllib.request.Request(
        api.url + path, b"{}", {"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_quotas_and_limit_ranges_bind_pods(api: ApiServer) -> None:
    line = {
        "type": "Container",
        "default": {"cpu": "500m"},
        "defaultRequest": {"cpu": "200m"},
        "max": {"cpu": "2"},
    }
    api.create("limitranges", {"metadata": {"name": "l"}, "spec": {"limits": [line]}})
    api.create("resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": {"requests.cpu": "1"}}})
    made = api.create("pods", pod("a", cpu=None, memory=None))
    assert made["spec"]["containers"][0]["resources"] == {
        "limits": {"cpu": "500m"},
        "requests": {"cpu": "200m"},
    }
    with pytest.raises(
        ApiError, match=r"exceeded quota: q, requested: requests\.cpu=0\.9, used: requests\.cpu=0\.2"
    ):
        api.create("pods", pod("b", cpu="900m", limits={"cpu": "1"}))
    with pytest.raises(ApiError, match="maximum cpu usage per Container is 2, but limit is 3"):
        api.create("pods", pod("b", cpu="100m", limits={"cpu": "3"}))
    api.create("pods", pod("c", cpu="800m", limits={"cpu": "2"}))
    bigger = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "900m"}}}]}}
    with pytest.raises(ApiError, match="exceeded quota"):
        api.patch("pods", "c", bigger, kind="strategic", subresource="resize")


def test_case_66_nodes_of_a_simulator_are_schedulable() -> None:
    made = node("n1")
    assert made["metadata"]["labels"]["kubernetes.io/hostname"] == "n1"
    assert made["status"]["allocatable"]["pods"] == "110"
    assert [(c["type"], c["status"]) for c in made["status"]["conditions"]] == [("Ready", "True")]
    assert "taints" not in made["spec"]


def test_a_kubeconfig_leads_to_it(api: ApiServer, tmp_path: Path) -> None:
    written = json.loads(api.kubeconfig(tmp_path / "kubeconfig").read_text())
    assert written["clusters"][0]["cluster"]["server"] == api.url


def test_writers_at_once_lose_nothing(api: ApiServer, watch: Watch) -> None:
    def write(lead: str) -> None:
        for index in range(50):
            api.create("pods", pod(f"{lead}{index}"))

    threads = [threading.Thread(target=write, args=(lead,)) for lead in "abcd"]
    stream = watch(f"resourceVersion={version(api)}")
    for thread in threads:
        thread.start()
    seen = [name for _, name in stream.kinds(200)]
    for thread in threads:
        thread.join()
    assert sorted(seen) == sorted(names(get(api, PODS)))
