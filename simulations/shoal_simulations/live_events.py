# SPDX-License-Identifier: Apache-2.0
"""Watch events in any order, and a live cluster compared with its recomputation from scratch.

What the client's state must survive: pods before their nodes, names that come back with another uid, events
twice, deletions of what never was, lists that have lost half, decisions in between. Used by the client's
property tests, by `shoal bench informer` and by the soak.
"""

from __future__ import annotations

import random
import time
from typing import Any, Final, final

import numpy as np

from shoal_client.state.inventory import waiting
from shoal_client.state.live import LiveCluster
from shoal_common.cluster import (
    MAX_GPUS,
    MAX_ZONES,
    N_EXISTS,
    NODE_COLUMNS,
    U_FAILURES,
    U_REMAINING,
    USE_COLUMNS,
)
from shoal_common.fields import Field
from shoal_common.manifests import read_pod
from shoal_common.tables import fill
from shoal_simulations.control_plane import builders

OF_TIME: Final = [U_REMAINING, U_FAILURES]
"""Columns that depend on when something happened, not only on what is there."""

Object = dict[str, Any]


def seen_node(name: str, uid: str = "", version: int = 1, is_ready: bool = True, **room: Any) -> Object:
    """A node as a list shows it; `room` as for `builders.node`."""
    made = builders.node(name, **room)
    made["metadata"] |= {"uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    made["status"]["conditions"] = [builders.ready(is_ready)]
    return made


def seen_pod(
    name: str, on: str = "", uid: str = "", version: int = 1, phase: str = "", **asked: Any
) -> Object:
    """A pod as a list shows it, bound to the node `on`; `status` adds to its status."""
    status = asked.pop("status", {})
    made = builders.pod(name, node_name=on, **asked)
    made["metadata"] |= {"uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    made["status"] = {"phase": phase or ("Running" if on else "Pending"), **status}
    return made


@final
class RandomEvents:
    """A source of events for a `LiveCluster` of few names, so that everything meets everything."""

    def __init__(self, live: LiveCluster, seed: int, nodes: int = 8, pods: int = 40) -> None:
        self._live, self._random = live, random.Random(seed)
        self._nodes, self._pods = nodes, pods
        self._version = 0

    def step(self) -> None:
        """Let one thing happen."""
        draw = self._random.random()
        if draw < 0.10:
            self._decide()
        elif draw < 0.12:
            self._list()
        else:
            kind = "Pod" if self._random.random() < 0.8 else "Node"
            event = self._random.choice(("ADDED", "MODIFIED", "MODIFIED", "DELETED"))
            content = self._pod() if kind == "Pod" else self._node()
            for _ in range(self._random.choice((1, 1, 1, 2))):
                self._live.apply(kind, event, content)  # type: ignore[arg-type]

    def _decide(self) -> None:
        pod = read_pod(Field("pod", "", self._pod()))
        if self._random.random() < 0.7:
            self._live.reserve(pod, self._some_node())
        else:
            self._live.release(pod.uid)

    def _list(self) -> None:
        kept = self._random.uniform(0.5, 1.0)
        if self._random.random() < 0.5:
            self._live.replace("Node", [self._node(n) for n in range(self._nodes) if self._kept(kept)])
        else:
            self._live.replace("Pod", [self._pod(p) for p in range(self._pods) if self._kept(kept)])

    def _kept(self, share: float) -> bool:
        return self._random.random() < share

    def _some_node(self) -> str:
        return f"node-{self._random.randrange(self._nodes + 1)}"  # one of them never comes

    def _next(self) -> int:
        self._version += 1
        return self._version

    def _node(self, number: int | None = None) -> Object:
        draw = self._random
        number = draw.randrange(self._nodes) if number is None else number
        return seen_node(
            f"node-{number}",
            f"n{number}.{draw.randrange(2)}",
            self._next(),
            draw.random() < 0.8,
            cpu=str(draw.randrange(1, 9)),
            gpus=draw.choice((0, 2, 4)),
            resources=draw.choice(({}, {"nvidia.com/mig-1g.5gb": 7})),
        )

    def _pod(self, number: int | None = None) -> Object:
        draw = self._random
        number = draw.randrange(self._pods) if number is None else number
        return seen_pod(
            f"pod-{number}",
            self._some_node() if draw.random() < 0.7 else "",
            f"p{number}.{draw.randrange(2)}",
            self._next(),
            draw.choice(("", "", "", "Succeeded", "Failed")),
            cpu=draw.choice((None, "100m", "1500m")),
            gpus=draw.choice((0, 0, 1, 2)),
            resources=draw.choice(({}, {}, {"nvidia.com/mig-1g.5gb": 1})),
            annotations=draw.choice(({}, {"shoal.dev/gpu-milli": "300"})),
        )


def differences(live: LiveCluster) -> list[str]:
    """Where a live cluster differs from what its records alone give; [] where it does not."""
    cluster, found = live.cluster, []
    infos = {info.name: info for info in live.snapshot().infos}
    rows = {name: live.row(name) for name in infos}
    there = np.flatnonzero(cluster.node[:, N_EXISTS]).tolist()
    if sorted(rows.values()) != there or any(cluster.names[row] != name for name, row in rows.items()):
        found.append("rows")
    for name, info in infos.items():
        fresh = (
            np.zeros(NODE_COLUMNS), np.zeros(USE_COLUMNS), np.zeros(MAX_GPUS), np.zeros((MAX_ZONES, 2)),
        )  # fmt: skip
        fill(info.node, info.pods, *fresh)
        row = rows[name]
        use = cluster.use[row].copy()
        use[OF_TIME] = fresh[1][OF_TIME] = 0.0
        held = (cluster.node[row], use, cluster.gpu_free[row], cluster.zone_free[row])
        if not all(map(np.array_equal, held, fresh)):
            found.append(name)
    spare = np.delete(cluster.use, there, axis=0)
    if spare.any():
        found.append("spare rows")
    if live.pending != sum(map(waiting, live.pods.values())):
        found.append("pending")
    return found


def compare_with_scratch(events: int, every: int = 100, seed: int = 1) -> dict[str, Any]:
    """Random events: how many comparisons, one after each `every`th, differ, and events per CPU second."""
    live = LiveCluster()
    source, differ, seconds = RandomEvents(live, seed), 0, 0.0
    for count in range(1, events + 1):
        began = time.thread_time()
        source.step()
        seconds += time.thread_time() - began
        differ += count % every == 0 and bool(differences(live))
    return {"events": events, "differ": differ, "events_per_second": events / seconds}
