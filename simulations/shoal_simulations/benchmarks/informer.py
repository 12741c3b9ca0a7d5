# SPDX-License-Identifier: Apache-2.0
"""What the informer's state costs: memory and seconds for a large cluster, heartbeats, events, and its truth.

Objects are as large as a real API server's (5 kB a pod, 9 kB a node, managed fields and images included) and
take the way of a list: JSON bytes, decoded, read into records, summed. All times are CPU seconds of one core.
The sums are compared with a recomputation after every hundredth of the random events.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from shoal_client.state.informer import decoded
from shoal_client.state.live import Kind, LiveCluster
from shoal_simulations.benchmarks.memory import resident_bytes
from shoal_simulations.live_events import compare_with_scratch, seen_node, seen_pod

NODES, PODS = 5_000, 50_000
PODS_OF_AN_OWNER = 20
RANDOM_EVENTS = 1_000_000


def run(quick: bool = False) -> dict[str, Any]:
    """Measure; quick takes a fifth of the cluster and 20,000 events."""
    nodes, pods = (NODES // 5, PODS // 5) if quick else (NODES, PODS)
    events = 20_000 if quick else RANDOM_EVENTS
    live, before = LiveCluster(), resident_bytes()
    listed = _list(live, nodes, pods)
    gc.collect()
    grown = resident_bytes() - before
    refilled = _seconds(live.take_changed)
    relisted = _list(live, nodes, pods)
    random = compare_with_scratch(events)
    return {
        "nodes": nodes,
        "pods": pods,
        "list_seconds": listed,
        "relist_seconds": relisted,
        "rows_seconds": refilled,
        "state_megabytes": grown / 2**20,
        "state_bytes_per_pod": grown / pods,
        "heartbeat_microseconds": _heartbeats(live),
        "pod_events_per_second": _pod_events(live, pods),
        "random_events": events,
        "random_events_per_second": random["events_per_second"],
        "random_events_differences": random["differ"],
    }


def large_node(number: int) -> dict[str, Any]:
    """A node with 30 images and four conditions."""
    made = seen_node(f"node-{number:05}", gpus=8 * (number % 10 == 0), cpu="32", memory="128Gi")
    made["metadata"]["labels"]["topology.kubernetes.io/zone"] = f"zone-{number % 3}"
    conditions = [
        {
            "type": kind,
            "status": "False",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
            "reason": f"KubeletHasSufficient{kind}",
            "message": f"kubelet has sufficient {kind} available",
        }
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure")
    ]
    made["status"]["conditions"] += conditions
    images = [
        {
            "names": [f"registry.example/app-{k}@sha256:{'a' * 64}", f"registry.example/app-{k}:1.{k}"],
            "sizeBytes": 10_000_000 + k,
        }
        for k in range(30)
    ]
    made["status"]["images"] = images
    return made


def large_pod(number: int, nodes: int, version: int = 1) -> dict[str, Any]:
    """A running pod of a ReplicaSet, with what a kubelet and a controller write on it."""
    app = number // PODS_OF_AN_OWNER
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": f"app-{app}-6d5f8c7b9d",
        "uid": f"rs-{app}",
    }
    made = seen_pod(
        f"app-{app}-6d5f8c7b9d-{number:05}",
        f"node-{number % nodes:05}",
        f"00000000-0000-4000-8000-{number:012}",
        version,
        namespace=f"team-{app % 50}",
        cpu=f"{100 * (1 + app % 8)}m",
        memory=f"{128 * (1 + app % 8)}Mi",
        labels={"app": f"app-{app}", "pod-template-hash": "6d5f8c7b9d"},
        annotations={"checksum/config": "a" * 64},
        owner=owner,
    )
    times = {"lastProbeTime": None, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    made["status"] |= {
        "startTime": "2026-01-01T00:00:00Z",
        "conditions": [{"type": kind, "status": "True", **times} for kind in kinds],
        "containerStatuses": [{"name": "main", "ready": True, "restartCount": 0, "imageID": "b" * 80}],
    }
    fields: dict[str, Any] = {"f:spec": {f"f:{'x' * 40}-{k}": {".": {}, "f:y": {}} for k in range(40)}}
    made["metadata"]["managedFields"] = [{"manager": "kubelet", "operation": "Update", "fieldsV1": fields}]
    made["spec"]["tolerations"] = [
        {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute"}
        for what in ("not-ready", "unreachable")
    ]
    return made


def _list(live: LiveCluster, nodes: int, pods: int) -> float:
    """Take up a list of nodes and one of pods; CPU seconds from their bytes on."""
    making = [0.0]

    def objects(kind: Kind, count: int, make: Callable[[int], Any]) -> Iterator[Mapping[str, Any]]:
        for number in range(count):
            began = time.thread_time()
            raw = msgspec.json.encode(make(number))
            making[0] += time.thread_time() - began
            yield decoded(live, kind, raw)

    def take_up() -> None:
        live.replace("Node", objects("Node", nodes, large_node))
        live.replace("Pod", objects("Pod", pods, lambda number: large_pod(number, nodes)))

    return _seconds(take_up) - making[0]


def _heartbeats(live: LiveCluster, count: int = 2_000) -> float:
    """Microseconds for a node's heartbeat that changes nothing, decoding included."""
    lines = []
    for beat in range(count):
        content = large_node(beat % 100)
        content["metadata"]["resourceVersion"] = str(1000 + beat)
        content["status"]["conditions"][0]["lastHeartbeatTime"] = f"2026-01-01T00:{beat % 60:02}:00Z"
        lines.append(msgspec.json.encode(content))
    live.take_changed()
    seconds = _seconds(lambda: _apply(live, "Node", lines))
    if len(live.take_changed()):
        raise AssertionError("a heartbeat changed a row: this is no measure of heartbeats")
    return 1e6 * seconds / count


def _pod_events(live: LiveCluster, pods: int, count: int = 5_000) -> float:
    """Changes of pods per second, decoding included."""
    lines = [msgspec.json.encode(large_pod(n % pods, 100, version=2 + n)) for n in range(count)]
    return count / _seconds(lambda: _apply(live, "Pod", lines))


def _apply(live: LiveCluster, kind: Kind, lines: list[bytes]) -> None:
    for raw in lines:
        live.apply(kind, "MODIFIED", msgspec.json.decode(raw))


def _seconds(work: Callable[[], object]) -> float:
    """CPU seconds of a call in this thread."""
    began = time.thread_time()
    work()
    return time.thread_time() - began
