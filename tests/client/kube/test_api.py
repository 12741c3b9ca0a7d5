# SPDX-License-Identifier: Apache-2.0
"""The way to the API: what is sent, what answers mean, and that no call can hang."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import urllib3

from shoal_client.kube import api as kube_api
from shoal_client.kube.api import (
    DEPLOYMENTS,
    LEASES,
    NODES,
    PODS,
    Api,
    Conflict,
    Gone,
    NotFound,
    Refused,
    TooManyRequests,
    connect,
)
from shoal_client.kube.errors import api_error
from shoal_common.errors import InputError, Transient
from shoal_simulations.control_plane import ApiServer, node, pod

ROOT = Path(__file__).parents[3]
SOURCES = sorted((ROOT / "client/shoal_client").rglob("*.py"))


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        server.create("nodes", node("n1"))
        server.create("pods", pod("p1", limits={"cpu": "100m", "memory": "128Mi"}))
        yield server


@pytest.fixture
def api(server: ApiServer, tmp_path: Path) -> Api:
    return connect(server.kubeconfig(tmp_path / "kubeconfig"))


def test_objects_are_read_and_written_as_dicts(server: ApiServer, api: Api) -> None:
    assert [n["metadata"]["name"] for n in api.list(NODES)] == ["n1"]
    assert api.get(PODS, "p1", "default")["spec"]["containers"][0]["name"] == "main"
    api.patch(PODS, "p1", {"metadata": {"labels": {"a": "b"}}}, "default")
    assert [p["metadata"]["name"] for p in api.list(PODS, labels="a=b")] == ["p1"]
    assert list(api.list(PODS, "elsewhere")) == []
    assert list(api.list(PODS, fields="spec.nodeName=n1")) == []
    lease = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}}
    assert api.create(LEASES, lease, "default")["spec"]["holderIdentity"] == "me"
    api.delete(LEASES, "l", "default")
    assert api.version().minor == 36
    assert {request.user_agent for request in server.requests} == {f"shoal-client/{version('shoal')}"}


def test_lists_go_page_by_page(server: ApiServer, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(7):
        server.create("pods", pod(f"q{i}"))
    pages = []
    page = Api.list_raw

    def of_three(self: Api, *args: object, **query: object) -> bytes:
        pages.append(query)
        return page(self, *args, limit=3, **query)  # type: ignore[arg-type]

    monkeypatch.setattr(Api, "list_raw", of_three)
    assert len(list(api.list(PODS))) == 8
    assert [bool(query["continue_token"]) for query in pages] == [False, True, True]


def test_subresources(server: ApiServer, api: Api) -> None:
    sides = {"requests": {"cpu": "50m"}, "limits": {"cpu": "50m"}}
    api.resize("p1", "default", [{"name": "main", "resources": sides}])
    assert server.get("pods", "p1")["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "50m"
    api.bind("p1", "default", "n1", uid=server.get("pods", "p1")["metadata"]["uid"])
    assert server.get("pods", "p1")["spec"]["nodeName"] == "n1"
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod("x")["spec"]}
    spec = {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    server.create("deployments", {"metadata": {"name": "d"}, "spec": spec})
    api.scale(DEPLOYMENTS, "d", "default", 3)
    assert server.get("deployments", "d")["spec"]["replicas"] == 3
    api.evict("p1", "default")
    assert "deletionTimestamp" in server.get("pods", "p1")["metadata"]
    assert api.access_review("get", PODS)
    server.deny("create", "pods/binding")
    assert not api.access_review("create", PODS, subresource="binding", namespace="default")


def test_errors_say_what_to_do_about_them(server: ApiServer, api: Api) -> None:
    with pytest.raises(NotFound, match=r'pods "nobody" not found') as missing:
        api.get(PODS, "nobody", "default")
    assert (missing.value.status, missing.value.reason) == (404, "NotFound")
    with pytest.raises(Conflict):
        api.create(NODES, node("n1"))
    with pytest.raises(Conflict):
        api.patch(PODS, "p1", {"metadata": {"resourceVersion": "1", "labels": {"a": "b"}}}, "default")
    api.bind("p1", "default", "n1")
    with pytest.raises(Conflict, match="already assigned"):
        api.bind("p1", "default", "n1")
    with pytest.raises(Conflict):
        api.delete(PODS, "p1", "default", uid="another")
    for status, kind in (
        (500, Transient),
        (503, Transient),
        (429, TooManyRequests),
        (410, Gone),
        (403, Refused),
    ):
        server.error(status, 1)
        with pytest.raises(kind):
            api.get(PODS, "p1", "default")
    server.down()
    with pytest.raises(Transient, match="refused"):
        api.get(PODS, "p1", "default")


def test_an_eviction_that_a_budget_forbids_is_for_later(server: ApiServer, api: Api) -> None:
    server.create("pods", pod("guarded", labels={"app": "g"}))
    server.bind("guarded", "n1")
    server.patch("pods", "guarded", {"status": {"phase": "Running"}}, subresource="status")
    server.set_condition("pods", "guarded", {"type": "Ready", "status": "True"})
    selector = {"matchLabels": {"app": "g"}}
    budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": selector}}
    server.create("poddisruptionbudgets", budget)
    with pytest.raises(TooManyRequests, match="disruption budget"):
        api.evict("guarded", "default")


def test_an_error_event_is_the_same_error() -> None:
    assert isinstance(api_error(410, "Expired", "too old"), Gone)
    assert isinstance(api_error(0, "", ""), Transient)
    busy = api_error(429, "", "", "7")
    assert isinstance(busy, TooManyRequests)
    assert busy.retry_after_seconds == 7


def test_no_credentials_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"absent.*--kubeconfig FILE"):
        connect(tmp_path / "absent")
    (tmp_path / "bad").write_text("]")
    with pytest.raises(InputError) as error:
        connect(tmp_path / "bad")
    assert "\n" not in str(error.value)
    with pytest.raises(InputError):
        connect(in_cluster=True)


def test_a_server_that_is_no_url_is_said_at_once(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    cluster = "clusters: [{name: c, cluster: {server: 'kube.example:6443'}}]"
    contexts = "contexts: [{name: c, context: {cluster: c, user: u}}]"
    path.write_text(f"{cluster}\n{contexts}\nusers: [{{name: u, user: {{}}}}]\ncurrent-context: c\n")
    with pytest.raises(InputError, match=r"server: 'kube.example:6443' is no URL; write"):
        connect(path)


def test_certificates_are_checked_unless_the_kubeconfig_says_otherwise(tmp_path: Path) -> None:
    for skip in (False, True):
        cluster = {"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": skip}
        path = tmp_path / f"{skip}"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
        }
        path.write_text(json.dumps(config))
        api = connect(path)
        assert api._configuration.verify_ssl is not skip
        assert api._headers("application/json")["authorization"] == "Bearer t"


@pytest.mark.parametrize(
    "call",
    [
        lambda api: api.get(PODS, "p1", "default"),
        lambda api: list(api.list(PODS)),
        lambda api: api.patch(PODS, "p1", {}, "default"),
        lambda api: api.version(),
        lambda api: api.evict("p1", "default"),
    ],
)
def test_case_32_every_call_has_a_connect_and_a_read_timeout(
    api: Api, monkeypatch: pytest.MonkeyPatch, call: Callable[[Api], object]
) -> None:
    seen: list[urllib3.Timeout] = []

    def request(*args: object, timeout: urllib3.Timeout, **more: object) -> None:
        seen.append(timeout)
        raise urllib3.exceptions.HTTPError("stop here")

    monkeypatch.setattr(api._pool, "request", request)
    with pytest.raises(Transient):
        call(api)
    (timeout,) = seen
    assert 0 < timeout.connect_timeout <= 10
    assert 0 < timeout.read_timeout <= 60


SENDS = {"request", "urlopen", "create_connection", "HTTPConnection", "HTTPSConnection", "HTTPConnectionPool"}


def _sends(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls by which a process reaches another over the network."""
    for found in ast.walk(tree):
        if isinstance(found, ast.Call):
            function = found.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if name in SENDS:
                yield found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_case_32_no_source_sends_a_request_without_a_timeout(path: Path) -> None:
    for call in _sends(ast.parse(path.read_text())):
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        positional = call.args[1] if len(call.args) == 2 else None  # socket.create_connection
        value = given.get("timeout", positional)
        assert value is not None, f"{path.name}:{call.lineno}"
        assert not (isinstance(value, ast.Constant) and not value.value), f"{path.name}:{call.lineno}"


def test_case_32_the_api_is_reached_through_one_call() -> None:
    calls = list(_sends(ast.parse(Path(kube_api.__file__).read_text())))
    assert len(calls) == 1
    assert "_preload_content" not in "".join(
        p.read_text() for p in SOURCES
    )  # the generated calls are not used
