# SPDX-License-Identifier: Apache-2.0
"""Requests whose answers by a real kube-apiserver are kept beside the tests, and how answers are compared.

    python tests/simulations/control_plane/recorded_requests.py https://127.0.0.1:6443 TOKEN

records them anew (an empty cluster without scheduler and controllers; v1.36.2 at the time of writing).
"""

from __future__ import annotations

import json
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from shoal_simulations.control_plane import node, pod

RECORDED = Path(__file__).parent / "api_answers.json"
NS = "parity"
CORE, PODS = "/api/v1", f"/api/v1/namespaces/{NS}/pods"
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
JSON, APPLY = "application/json-patch+json", "application/apply-patch+yaml"
Step = tuple[str, str, str, Any]  # method, path and query, content type, body


def post(path: str, body: Any) -> Step:
    return ("POST", path, "application/json", body)


def put(path: str, body: Any) -> Step:
    return ("PUT", path, "application/json", body)


def get(path: str) -> Step:
    return ("GET", path, "", None)


def patch(path: str, kind: str, body: Any) -> Step:
    return ("PATCH", path, kind, body)


def delete(path: str, body: Any = None) -> Step:
    return ("DELETE", path, "application/json", body)


def small(name: str, **more: Any) -> dict[str, Any]:
    return pod(name, namespace=NS, **more)


def binding(name: str, target: str, **metadata: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, **metadata},
        "target": {"apiVersion": "v1", "kind": "Node", "name": target},
    }


def eviction(name: str) -> dict[str, Any]:
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": NS}}


def resize(
    requests: dict[str, str], limits: dict[str, str] | None = None, name: str = "main"
) -> dict[str, Any]:
    resources: dict[str, Any] = {"requests": requests} | ({"limits": limits} if limits else {})
    return {"spec": {"containers": [{"name": name, "resources": resources}]}}


def deployment(replicas: int) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": small("x")["spec"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template},
    }


def lease(version: str = "", holder: str = "a") -> dict[str, Any]:
    metadata = {"name": "leader"} | ({"resourceVersion": version} if version else {})
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def applied(config: dict[str, str]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": config}


def status(phase: str, *, ready: bool = True) -> dict[str, Any]:
    now = "2026-01-01T00:00:00Z"
    condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": now}
    return {"status": {"phase": phase, "conditions": [condition]}}


DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NS}/deployments"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NS}/leases"
CONFIG = f"{CORE}/namespaces/{NS}/configmaps"
BUDGETS = f"/apis/policy/v1/namespaces/{NS}/poddisruptionbudgets"
GATE = "shoal.dev/placement"
BUDGET = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "keep"},
    "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}},
}
FULL = {"spec": {"selector": {"matchLabels": {"app": "kept"}}}}
QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "room"},
    "spec": {"hard": {"pods": "0"}},
}

STEPS: dict[str, Step] = {
    "no namespace": post(PODS, small("a")),
    "namespace": post(f"{CORE}/namespaces", {"metadata": {"name": NS}}),
    "node": post(
        f"{CORE}/nodes", node("n1", cpu="4", memory="8Gi", labels={"topology.kubernetes.io/zone": "z"})
    ),
    "node again": post(f"{CORE}/nodes", node("n1")),
    "node status by the main resource": patch(
        f"{CORE}/nodes/n1", MERGE, {"status": {"allocatable": {"cpu": "9"}}}
    ),
    "node label": patch(f"{CORE}/nodes/n1", MERGE, {"metadata": {"labels": {"a": "b"}}}),
    "node condition": patch(
        f"{CORE}/nodes/n1/status",
        STRATEGIC,
        {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
    ),
    "pod": post(PODS, small("a", cpu="100m", memory="64Mi")),
    "pod without name": post(PODS, {"metadata": {}, "spec": small("x")["spec"]}),
    "pod of another kind": post(PODS, {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "x"}}),
    "pod without containers": post(PODS, {"metadata": {"name": "x"}, "spec": {"containers": []}}),
    "pod by limits": post(PODS, small("b", cpu=None, memory=None, limits={"cpu": "1", "memory": "1Gi"})),
    "request above limit": post(PODS, small("x", cpu="2", limits={"cpu": "1"})),
    "best effort": post(PODS, small("c", cpu=None, memory=None)),
    "gated": post(PODS, small("g", cpu="1", memory="64Mi", gates=[GATE])),
    "gated on a node": post(PODS, small("x", gates=[GATE], node_name="n1")),
    "priority class": post(PODS, small("x", spec={"priorityClassName": "none"})),
    "system priority": post(PODS, small("sys", spec={"priorityClassName": "system-cluster-critical"})),
    "body with a version": post(PODS, {**small("x"), "metadata": {"name": "x", "resourceVersion": "1"}}),
    "unequal gpus": post(
        PODS,
        small(
            "x",
            spec={
                "containers": [
                    {"name": "m", "image": "i", "resources": {"requests": {"nvidia.com/gpu": "1"}}}
                ]
            },
        ),
    ),
    "list": get(PODS),
    "list by label": get(f"{PODS}?labelSelector=app%3Dweb"),
    "list by node": get(f"{CORE}/pods?fieldSelector=spec.nodeName%3Dn1"),
    "list by an unknown field": get(f"{PODS}?fieldSelector=spec.foo%3Dn1"),
    "list by a bad label": get(f"{PODS}?labelSelector=a%3D%3D%3Db"),
    "list at no version": get(f"{PODS}?resourceVersion=None"),
    "page": get(f"{PODS}?limit=2"),
    "bad continue": get(f"{PODS}?limit=2&continue=nonsense"),
    "missing": get(f"{PODS}/missing"),
    "missing resource": get(f"{CORE}/nothings"),
    "missing group": get("/apis/nothing.example.com/v1/things"),
    "bind a gated pod": post(f"{PODS}/g/binding", binding("g", "n1")),
    "add a gate": patch(f"{PODS}/a", MERGE, {"spec": {"schedulingGates": [{"name": "x"}]}}),
    "resize a gated pod": patch(f"{PODS}/g/resize", STRATEGIC, resize({"cpu": "500m", "memory": "64Mi"})),
    "resize to another class": patch(
        f"{PODS}/g/resize", STRATEGIC, resize({"cpu": "1", "memory": "64Mi"}, {"cpu": "1", "memory": "64Mi"})
    ),
    "resize a limit in": patch(f"{PODS}/g/resize", STRATEGIC, resize({"cpu": "500m"}, {"cpu": "1"})),
    "resize above the limit": patch(f"{PODS}/g/resize", STRATEGIC, resize({"cpu": "2"})),
    "resize another resource": patch(f"{PODS}/g/resize", STRATEGIC, resize({"ephemeral-storage": "1Gi"})),
    "resize away": patch(f"{PODS}/g/resize", MERGE, resize({"cpu": "500m"})),
    "resize labels": patch(f"{PODS}/g/resize", MERGE, {"metadata": {"labels": {"x": "y"}}}),
    "resources by the main resource": patch(f"{PODS}/g", STRATEGIC, resize({"cpu": "600m"})),
    "selector while gated": patch(f"{PODS}/g", MERGE, {"spec": {"nodeSelector": {"a": "b"}}}),
    "selector changed": patch(f"{PODS}/g", MERGE, {"spec": {"nodeSelector": {"a": "c"}}}),
    "affinity while gated": patch(
        f"{PODS}/g",
        MERGE,
        {
            "spec": {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {
                                    "matchFields": [
                                        {"key": "metadata.name", "operator": "In", "values": ["n1"]}
                                    ]
                                }
                            ]
                        }
                    }
                }
            }
        },
    ),
    "selector without gate": patch(f"{PODS}/a", MERGE, {"spec": {"nodeSelector": {"a": "b"}}}),
    "ungate": patch(f"{PODS}/g", JSON, [{"op": "replace", "path": "/spec/schedulingGates", "value": []}]),
    "patch of no path": patch(f"{PODS}/g", JSON, [{"op": "replace", "path": "/spec/none/x", "value": 1}]),
    "patch of a failed test": patch(f"{PODS}/g", JSON, [{"op": "test", "path": "/kind", "value": "x"}]),
    "patch of another version": patch(
        f"{PODS}/g", MERGE, {"metadata": {"resourceVersion": "1", "labels": {"x": "y"}}}
    ),
    "patch of an unknown kind": patch(f"{PODS}/g", "text/plain", {}),
    "image": patch(f"{PODS}/g", STRATEGIC, {"spec": {"containers": [{"name": "main", "image": "other"}]}}),
    "patch of nothing": patch(f"{PODS}/g", MERGE, {}),
    "annotation": patch(f"{PODS}/g", MERGE, {"metadata": {"annotations": {"k": "v"}}}),
    "no annotation": patch(f"{PODS}/g", MERGE, {"metadata": {"annotations": {"k": None}}}),
    "bind without target": post(f"{PODS}/g/binding", {**binding("g", ""), "target": {"name": ""}}),
    "bind another uid": post(f"{PODS}/g/binding", binding("g", "n1", uid="other")),
    "bind": post(f"{PODS}/g/binding", binding("g", "n1")),
    "bound": get(f"{PODS}/g"),
    "bind again": post(f"{PODS}/g/binding", binding("g", "n1")),
    "bind elsewhere": post(f"{PODS}/g/binding", binding("g", "n2")),
    "bind to a missing node": post(f"{PODS}/c/binding", binding("c", "nowhere")),
    "bind a missing pod": post(f"{PODS}/missing/binding", binding("missing", "n1")),
    "bind by collection": post(f"{CORE}/namespaces/{NS}/bindings", binding("a", "n1")),
    "resize above the node": patch(f"{PODS}/a/resize", STRATEGIC, resize({"cpu": "100"})),
    "resize a bound pod": patch(f"{PODS}/a/resize", STRATEGIC, resize({"cpu": "200m"})),
    "phase by the main resource": patch(f"{PODS}/g", MERGE, {"status": {"phase": "Running"}}),
    "phase by status": patch(f"{PODS}/g/status", MERGE, status("Running")),
    "delete with grace": delete(f"{PODS}/g"),
    "delete again": delete(f"{PODS}/g"),
    "bind a terminating pod": post(f"{PODS}/g/binding", binding("g", "n1")),
    "delete another uid": delete(f"{PODS}/g", {"preconditions": {"uid": "other"}}),
    "delete at once": delete(f"{PODS}/g", {"gracePeriodSeconds": 0}),
    "deleted": get(f"{PODS}/g"),
    "delete an unbound pod": delete(f"{PODS}/b"),
    "kept": post(PODS, small("k", labels={"app": "kept"}, node_name="n1")),
    "kept runs": patch(f"{PODS}/k/status", MERGE, status("Running")),
    "lone": post(PODS, small("l", node_name="n1")),
    "evict without budget": post(f"{PODS}/l/eviction", eviction("l")),
    "evicted": get(f"{PODS}/l"),
    "budget": post(BUDGETS, BUDGET),
    "evict a missing pod": post(f"{PODS}/missing/eviction", eviction("missing")),
    "finalizer": patch(f"{PODS}/c", MERGE, {"metadata": {"finalizers": ["shoal.dev/x"]}}),
    "delete with finalizer": delete(f"{PODS}/c", {"gracePeriodSeconds": 0}),
    "finalizer away": patch(f"{PODS}/c", MERGE, {"metadata": {"finalizers": None}}),
    "finally gone": get(f"{PODS}/c"),
    "deployment": post(DEPLOYMENTS, deployment(2)),
    "scale": get(f"{DEPLOYMENTS}/web/scale"),
    "scale up": patch(f"{DEPLOYMENTS}/web/scale", MERGE, {"spec": {"replicas": 5}}),
    "scaled": get(f"{DEPLOYMENTS}/web/scale"),
    "scale below zero": patch(f"{DEPLOYMENTS}/web/scale", MERGE, {"spec": {"replicas": -1}}),
    "delete a deployment": delete(f"{DEPLOYMENTS}/web"),
    "lease": post(LEASES, lease()),
    "lease without version": put(f"{LEASES}/leader", lease()),
    "lease of an old version": put(f"{LEASES}/leader", lease("1", "b")),
    "apply": patch(f"{CONFIG}/settings?fieldManager=one", APPLY, applied({"a": "1", "b": "1"})),
    "apply less": patch(f"{CONFIG}/settings?fieldManager=one", APPLY, applied({"a": "1"})),
    "apply by another": patch(f"{CONFIG}/settings?fieldManager=two", APPLY, applied({"a": "2"})),
    "apply by force": patch(
        f"{CONFIG}/settings?fieldManager=two&force=true", APPLY, applied({"a": "2", "c": "2"})
    ),
    "apply without manager": patch(f"{CONFIG}/settings", APPLY, applied({"a": "2"})),
    "owner applies less": patch(f"{CONFIG}/settings?fieldManager=one", APPLY, applied({})),
    "update a map": put(f"{CONFIG}/settings", applied({"z": "1"})),
    "delete a map": delete(f"{CONFIG}/settings"),
    "delete a missing map": delete(f"{CONFIG}/settings"),
    "quota": post(f"{CORE}/namespaces/{NS}/resourcequotas", QUOTA),
    "method": put(PODS, small("x")),
    "delete a collection": delete(f"{CONFIG}?labelSelector=none%3Dnone"),
    "delete a node": delete(f"{CORE}/nodes/n1"),
}
"""What is asked, in this order."""


def ask(url: str, step: Step, token: str = "") -> tuple[int, Any]:
    """The status code and the decoded answer of one request."""
    method, path, kind, body = step
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    headers |= {"Content-Type": kind} if kind else {}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10, context=ssl._create_unverified_context()) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        text = error.read().decode()
        try:
            return error.code, json.loads(text)
        except ValueError:
            return error.code, {"text": text.strip()}


UNSTABLE = ("uid", "creationTimestamp", "managedFields", "selfLink", "continue", "lastTransitionTime")
UNSTABLE += ("lastProbeTime", "daemonEndpoints")  # present or not by how an object was written


def comparable(answer: Any) -> Any:
    """An answer without what differs from run to run; versions only as there or not."""
    if isinstance(answer, list):
        return [comparable(item) for item in answer]
    if not isinstance(answer, dict):
        return answer
    kept = {k: comparable(v) for k, v in answer.items() if k not in UNSTABLE}
    for key in ("resourceVersion", "deletionTimestamp"):
        if key in kept:
            kept[key] = "set"
    return kept


def record(url: str, token: str) -> None:
    answers = {name: ask(url, step, token) for name, step in STEPS.items()}
    document = {name: [code, comparable(answer)] for name, (code, answer) in answers.items()}
    RECORDED.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    record(*sys.argv[1:3])
