# SPDX-License-Identifier: Apache-2.0
"""A small cluster, its pods and a recorder's rules on a real store, driven by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from shoal_client.experience.apps import AppHistory
from shoal_client.experience.attempts import Attempts
from shoal_client.experience.reader import ExperienceReader
from shoal_client.experience.records import Seen
from shoal_client.experience.settings import Settings
from shoal_client.experience.store import ExperienceStore, StoreConfig
from shoal_common.cluster import MAX_GPUS, MAX_ZONES, NODE_COLUMNS, USE_COLUMNS, Cluster
from shoal_common.decide import observe
from shoal_common.pods import NodeRecord, PodRecord, PodStatus
from shoal_common.quantity import parse_quantity
from shoal_common.requests import ContainerResources, PodResources
from shoal_common.reward import ObjectiveWeights
from shoal_common.tables import fill, pod_row

GIB = 1024**3


class Live:
    """Nodes and the pods on them as tables, filled anew at each question."""

    def __init__(self, nodes: int = 4, cores: int = 16) -> None:
        room = {"cpu": cores * 1000, "memory": 4 * cores * GIB, "pods": 110}
        self.nodes = {f"node-{i}": NodeRecord(f"node-{i}", allocatable=room) for i in range(nodes)}
        self.pods: dict[str, PodRecord] = {}

    @property
    def cluster(self) -> Cluster:
        size = len(self.nodes)
        tables = np.zeros((size, NODE_COLUMNS)), np.zeros((size, USE_COLUMNS))
        devices = np.zeros((size, MAX_GPUS)), np.zeros((size, MAX_ZONES, 2))
        for i, node in enumerate(self.nodes.values()):
            on_node = [p for p in self.pods.values() if p.node_name == node.name and not p.finished]
            fill(node, on_node, *(table[i] for table in (*tables, *devices)))
        no = np.full(size, -1, np.int32)
        links = np.zeros((size, MAX_GPUS, MAX_GPUS), np.uint8)
        return Cluster(tuple(self.nodes), *tables, *devices, no, no, links, ("",) * size)

    @property
    def pending(self) -> int:
        return sum(not p.node_name and not p.finished for p in self.pods.values())

    def row(self, name: str) -> int:
        return list(self.nodes).index(name) if name in self.nodes else -1


def pod(uid: str = "u1", cpu: str = "2", **fields: object) -> PodRecord:
    requests = {"cpu": parse_quantity(cpu), "memory": parse_quantity("1Gi")}
    resources = PodResources(containers=(ContainerResources(requests=requests),))
    return PodRecord(
        **{"name": f"pod-{uid}", "uid": uid, "resources": resources, "phase": "Pending"} | fields
    )


@dataclass
class World:
    """What the rules see, and the means to make it happen. Time only moves by `at`."""

    store: ExperienceStore
    live: Live
    attempts: Attempts
    now: float = 1_000.0

    def seen(self, record: PodRecord, propensities: bool = False) -> Seen:
        cluster = self.live.cluster
        row = pod_row(record)
        mask = cluster.feasible(row)[:, None]
        obs = observe(cluster, row, mask, ObjectiveWeights().array())
        logits = np.arange(len(cluster), dtype=np.float32)[:, None]
        chances = mask / max(1, mask.sum())
        return Seen.of(obs, cluster.names, logits, chances if propensities else None)

    def decided(self, record: PodRecord, chosen: int, mode: str = "active", known: bool = True) -> None:
        seen = self.seen(record, known)
        self.attempts.decided(record, seen, chosen, "extender", mode, "digest", self.now)

    def change(self, before: PodRecord | None, after: PodRecord | None) -> None:
        if after is None:
            self.live.pods.pop(before.uid, None)
        else:
            self.live.pods[after.uid] = after
        self.attempts.changed(before, after, self.now)

    def bind(self, record: PodRecord, node: str, **status: object) -> PodRecord:
        bound = replace(record, node_name=node, phase="Running", status=PodStatus(**status))
        self.change(record, bound)
        return bound

    def at(self, seconds: float) -> None:
        self.now += seconds
        self.attempts.tick(self.now)

    def rows(self):
        assert self.store.flush(10)
        with ExperienceReader(self.store.path.parent) as reader:
            return list(reader.rows())


@pytest.fixture(scope="session")
def new_pod():
    return pod


@pytest.fixture(scope="session")
def make_world():
    """A world of four nodes on a running store."""

    def make(store: ExperienceStore, nodes: int = 4, now: float = 1_000.0) -> World:
        live = Live(nodes)
        return World(store, live, Attempts(store, live, AppHistory(store.key), Settings(), now), now)

    return make


@pytest.fixture
def world(tmp_path, make_world):
    with ExperienceStore(tmp_path / "experience", StoreConfig(capacity=1_000, tenant_cap=1_000)) as store:
        yield make_world(store)
