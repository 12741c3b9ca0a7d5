# SPDX-License-Identifier: Apache-2.0
"""The mutating webhook: puts Shoal's scheduling gate on opted-in pods as they are created, over HTTPS.

Speaks `admission.k8s.io/v1` AdmissionReview. It never refuses a pod: whatever it cannot read or decide is
allowed unchanged, and the shipped configuration (deploy/webhook/) says failurePolicy Ignore with a timeout
of 2 s, so that a dead webhook costs a pod at most its gate. Own and system namespaces are left out by that
configuration and again here, should somebody widen it. A gate is only put on while somebody leads and would
take it off again.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shoal_client.metrics import WEBHOOK_REQUESTS
from shoal_client.serve.asgi import read_body, send_answer
from shoal_client.serve.guard import SYSTEM_NAMESPACES
from shoal_client.serve.server import Address, HttpServer, Tls

_log = logging.getLogger("shoal.client.actuate")

GATE = "shoal.dev/placement"
OPT_IN = ("shoal.dev/placement", "enabled")
LONGEST_BODY = 4 * 2**20  # above what the API server lets an object be

Pod = Mapping[str, Any]
WantsGate = Callable[[str, Pod], bool]
"""(namespace, pod) -> whether a placement will be made for it."""


def answer(review: Mapping[str, Any], wants_gate: WantsGate, own_namespace: str) -> dict[str, Any]:
    """The AdmissionReview to send back: always allowed, with the gate as JSON patch where it is wanted."""
    request = review.get("request")
    request = request if isinstance(request, Mapping) else {}
    response: dict[str, Any] = {"uid": request.get("uid", ""), "allowed": True}
    result = _judge(request, wants_gate, own_namespace)
    WEBHOOK_REQUESTS.labels(result).inc()
    if result == "gated":
        patch = json.dumps(_patch(request["object"]["spec"])).encode()
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def _judge(request: Mapping[str, Any], wants_gate: WantsGate, own_namespace: str) -> str:
    try:
        pod, namespace = request["object"], request["namespace"]
        if request.get("operation") != "CREATE" or request.get("kind", {}).get("kind") != "Pod":
            return "other"
        if namespace in SYSTEM_NAMESPACES or namespace == own_namespace or not _placeable(pod):
            return "excluded"
        return "gated" if wants_gate(namespace, pod) else "unwanted"
    except Exception:  # fail open: no fault of ours may keep a pod from being created
        _log.exception("a pod is let through as it is")
        return "error"


def _placeable(pod: Pod) -> bool:
    """Opted in, not gated by us yet, and free to go to more than one node."""
    metadata, spec = pod["metadata"], pod["spec"]
    key, value = OPT_IN
    owners = metadata.get("ownerReferences") or ()
    return (
        (metadata.get("labels") or {}).get(key) == value
        and not spec.get("nodeName")
        and not any(owner.get("kind") in ("DaemonSet", "Node") for owner in owners)
        and all(gate["name"] != GATE for gate in spec.get("schedulingGates") or ())
    )


def _patch(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    gate = {"name": GATE}
    if spec.get("schedulingGates"):
        return [{"op": "add", "path": "/spec/schedulingGates/-", "value": gate}]
    return [{"op": "add", "path": "/spec/schedulingGates", "value": [gate]}]


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """Where to listen and which certificate to show; the files may be renewed while it runs."""

    address: Address
    tls: Tls
    own_namespace: str


class WebhookServer:
    """The webhook over HTTPS in a thread of its own: POST /mutate, GET /livez."""

    def __init__(self, settings: WebhookSettings, wants_gate: WantsGate) -> None:
        """Bind the address at once; raises InputError as `HttpServer` does."""
        self._settings, self._wants_gate = settings, wants_gate
        self._http = HttpServer(self._app, settings.address, settings.tls)

    @property
    def port(self) -> int:
        """The port it listens on, also where 0 was asked for."""
        return self._http.port

    def start(self) -> None:
        """Begin to answer; raises Fatal where it does not come up."""
        self._http.start()

    def stop(self) -> None:
        """Stop answering."""
        self._http.stop()

    def renew_certificate(self) -> bool:
        """Show the certificate as it is on disk now, if it changed; whether it did."""
        return self._http.renew_certificate()

    async def _app(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        status, body = 404, b"{}"
        if scope["path"] == "/livez":
            status = 200
        elif scope["path"] == "/mutate" and scope["method"] == "POST":
            status, body = self._mutate(await read_body(receive, LONGEST_BODY))
        await send_answer(send, status, body)

    def _mutate(self, body: bytes | None) -> tuple[int, bytes]:
        if body is None:
            return 413, b"{}"
        try:
            review = json.loads(body)
            request_kind = review["kind"]
        except (ValueError, TypeError, KeyError):
            WEBHOOK_REQUESTS.labels("error").inc()
            return 400, b'{"error": "send an AdmissionReview"}'
        if request_kind != "AdmissionReview":
            return 400, b'{"error": "send an AdmissionReview"}'
        return 200, json.dumps(answer(review, self._wants_gate, self._settings.own_namespace)).encode()
