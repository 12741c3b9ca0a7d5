# SPDX-License-Identifier: Apache-2.0
"""Random events of nodes and pods, in any order and repeated, against a state that is built from scratch."""

from __future__ import annotations

import time
from typing import Any, final

import numpy as np

from shoal_client.state import LiveCluster
from shoal_common.cluster import U_FAILURES, U_REMAINING
from shoal_simulations.benchmarks.churn import SIZES, Object
from shoal_simulations.control_plane.builders import node, pod

PODS_PER_NODE = 20
GPUS = 4
BY_AGE = (U_REMAINING, U_FAILURES)
"""Columns that tell of the past, which one that begins now cannot know."""


@final
class RandomEvents:
    """Draws events: objects of few names come, change, go, come back with another uid, and are repeated.

    A node comes back as another machine only once its pods are gone, since pods of the former machine count
    for nothing on the new one, which a state that begins later cannot know.
    """

    def __init__(self, nodes: int, seed: int = 0) -> None:
        self.objects: dict[str, dict[str, Object]] = {"Node": {}, "Pod": {}}
        self._rng = np.random.default_rng(seed)
        self._nodes, self._version = nodes, 0
        self._machines: dict[str, str] = {}
        self._last: tuple[str, str, Object] | None = None

    def next(self) -> tuple[str, str, Object]:
        """Kind, event and object."""
        draw = self._rng.random()
        if self._last is not None and draw < 0.05:
            return self._last
        kind = "Node" if draw < 0.15 else "Pod"
        name = self._name(kind)
        known = self.objects[kind].get(name)
        self._version += 1
        if known is None:
            event, content = "ADDED", self._make(kind, name)
        elif self._rng.random() < 0.3:
            event, content = "DELETED", self._stamped(known)
        else:
            event, content = "MODIFIED", self._change(kind, known)
        if event == "DELETED":
            del self.objects[kind][name]
        else:
            self.objects[kind][name] = content
        self._last = (kind, event, content)
        return self._last

    def _name(self, kind: str) -> str:
        most = self._nodes if kind == "Node" else self._nodes * PODS_PER_NODE
        return f"{kind.lower()}-{self._rng.integers(most)}"

    def _stamped(self, content: Object, **metadata: Any) -> Object:
        fresh = {**content["metadata"], "resourceVersion": str(self._version), **metadata}
        return {**content, "metadata": fresh}

    def _make(self, kind: str, name: str) -> Object:
        uid = f"{name}-{self._version}"
        if kind == "Node":
            held = any(p["spec"].get("nodeName") == name for p in self.objects["Pod"].values())
            self._machines[name] = self._machines.get(name, uid) if held else uid
            return self._stamped(self._node(name), uid=self._machines[name])
        cpu, memory = SIZES[int(self._rng.integers(len(SIZES)))]
        gpus = int(self._rng.integers(3)) if self._rng.random() < 0.2 else 0
        bound = f"node-{self._rng.integers(self._nodes)}" if self._rng.random() < 0.5 else ""
        made = pod(name, cpu=cpu, memory=memory, gpus=gpus, node_name=bound)
        return self._stamped({**made, "status": {"phase": "Pending"}}, uid=uid)

    def _node(self, name: str) -> Object:
        return node(name, cpu=int(self._rng.choice([8, 16])), gpus=GPUS * int(self._rng.integers(2)))

    def _change(self, kind: str, known: Object) -> Object:
        if kind == "Node":
            return self._stamped({**self._node(known["metadata"]["name"]), "metadata": known["metadata"]})
        spec, phase = known["spec"], str(self._rng.choice(["Pending", "Running", "Succeeded", "Failed"]))
        if not spec.get("nodeName"):
            spec, phase = {**spec, "nodeName": f"node-{self._rng.integers(self._nodes)}"}, "Pending"
        return self._stamped({**known, "spec": spec, "status": {"phase": phase}})


def compare_with_scratch(events: int, nodes: int, checks: int, seed: int = 0) -> dict[str, Any]:
    """Apply events and compare, so many times on the way; counts tables, sums and records that differ."""
    source, live = RandomEvents(nodes, seed), LiveCluster()
    live.replace("Node", ())
    live.replace("Pod", ())
    differ, seconds = 0, 0.0
    for _ in range(checks):
        drawn = [source.next() for _ in range(events // checks)]
        begin = time.perf_counter()
        for kind, event, content in drawn:
            live.apply("Node" if kind == "Node" else "Pod", event, content)
        seconds += time.perf_counter() - begin
        differ += differences(live, _scratch(source))
    return {"events": events, "checks": checks, "differ": differ, "events_per_second": events / seconds}


def _scratch(source: RandomEvents) -> LiveCluster:
    """A state that saw nothing but the objects that are there now."""
    fresh = LiveCluster()
    fresh.replace("Node", list(source.objects["Node"].values()))
    fresh.replace("Pod", list(source.objects["Pod"].values()))
    return fresh


def differences(live: LiveCluster, scratch: LiveCluster) -> int:
    """How many nodes or pods differ: records, rows of the tables, sums of requests against a recount."""
    wrong = int(dict(live.nodes) != dict(scratch.nodes)) + int(dict(live.pods) != dict(scratch.pods))
    wrong += int(live.pending != scratch.pending)
    mine, theirs = live.cluster, scratch.cluster
    shown = [i for i in range(mine.use.shape[1]) if i not in BY_AGE]
    for info in scratch.snapshot().infos:
        here, there = live.row(info.name), scratch.row(info.name)
        same = (
            np.array_equal(mine.node[here], theirs.node[there])
            and np.array_equal(mine.use[here, shown], theirs.use[there, shown])
            and np.array_equal(mine.zone_free[here], theirs.zone_free[there])
            and mine.gpu_free[here].sum() == theirs.gpu_free[there].sum()
        )
        wrong += not same
    return wrong
