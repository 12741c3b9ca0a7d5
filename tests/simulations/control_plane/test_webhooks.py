# SPDX-License-Identifier: Apache-2.0
"""Mutating webhooks: who is asked, what a patch does, what a failure does."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from shoal_simulations.control_plane import ApiError, ApiServer, pod

GATE = [{"op": "add", "path": "/spec/schedulingGates", "value": [{"name": "x.dev/gate"}]}]


class Hook:
    """A webhook that answers what a test wants."""

    def __init__(self) -> None:
        self.url = ""
        self.seen: list[Any] = []
        self.answer: dict[str, Any] = {"allowed": True, "patchType": "JSONPatch", "patch": encoded(GATE)}


def encoded(patch: Any) -> str:
    return base64.b64encode(json.dumps(patch).encode()).decode()


@pytest.fixture
def hook() -> Iterator[Hook]:
    found = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found.seen.append(review["request"])
            response = {"uid": review["request"]["uid"], **found.answer}
            raw = json.dumps({**review, "response": response}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_port}/mutate"
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as server:
        yield server


def register(api: ApiServer, url: str, **more: Any) -> None:
    rule = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    webhook = {
        "name": "gate.x.dev",
        "clientConfig": {"url": url},
        "rules": [rule],
        "failurePolicy": "Ignore",
        "timeoutSeconds": 1,
        "objectSelector": {"matchLabels": {"x.dev/opt-in": "yes"}},
        "namespaceSelector": {
            "matchExpressions": [
                {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]}
            ]
        },
        **more,
    }
    api.create("mutatingwebhookconfigurations", {"metadata": {"name": "x"}, "webhooks": [webhook]})


def opted_in(name: str = "p", **more: Any) -> dict[str, Any]:
    return pod(name, labels={"x.dev/opt-in": "yes"}, **more)


def test_a_patch_is_applied_to_the_completed_pod(api: ApiServer, hook: Hook) -> None:
    register(api, hook.url)
    made = api.create("pods", opted_in())
    assert made["spec"]["schedulingGates"] == [{"name": "x.dev/gate"}]
    assert made["status"]["conditions"][0]["reason"] == "SchedulingGated"
    assert hook.seen[0]["object"]["spec"]["schedulerName"] == "default-scheduler"
    assert (hook.seen[0]["operation"], hook.seen[0]["namespace"]) == ("CREATE", "default")


def test_selectors_leave_others_alone(api: ApiServer, hook: Hook) -> None:
    register(api, hook.url)
    api.create("pods", pod("not-opted-in"))
    api.create("pods", opted_in("system", namespace="kube-system"))
    api.create("configmaps", {"metadata": {"name": "c", "labels": {"x.dev/opt-in": "yes"}}})
    assert hook.seen == []


def test_a_denial_is_an_error(api: ApiServer, hook: Hook) -> None:
    hook.answer = {"allowed": False, "status": {"message": "no", "code": 403}}
    register(api, hook.url)
    with pytest.raises(ApiError, match="denied the request: no"):
        api.create("pods", opted_in())


@pytest.mark.parametrize("answer", [{"allowed": True, "uid": "other"}, {"allowed": True, "patch": "?"}])
def test_a_failure_follows_the_policy(api: ApiServer, hook: Hook, answer: dict[str, Any]) -> None:
    hook.answer = answer
    register(api, hook.url)
    assert "schedulingGates" not in api.create("pods", opted_in())["spec"]
    api.delete("mutatingwebhookconfigurations", "x")
    register(api, hook.url, failurePolicy="Fail")
    with pytest.raises(ApiError, match="failed calling webhook"):
        api.create("pods", opted_in("q"))


def test_a_webhook_that_is_away_is_ignored(api: ApiServer) -> None:
    register(api, "http://127.0.0.1:9/mutate")
    assert "schedulingGates" not in api.create("pods", opted_in())["spec"]
