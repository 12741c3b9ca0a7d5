# SPDX-License-Identifier: Apache-2.0
"""Whatever fails, wherever the process dies: nothing happens twice, and everybody comes free."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_client.actuate.events import Events
from shoal_client.actuate.gates import Gates
from shoal_client.actuate.leader import Leader, LeaseSettings
from shoal_client.actuate.webhook import GATE
from shoal_client.kube.api import connect
from shoal_client.placement import ContainerResize, Placing
from shoal_client.state.live import LiveCluster
from shoal_common.pods import PodRecord
from shoal_common.quantity import parse_quantity
from shoal_simulations.control_plane import ApiServer
from shoal_simulations.control_plane.builders import node, pod

NEVER = 10**9
SINGLE, GANG = ("s1", "s2"), ("g1", "g2", "g3")
CRASHES = st.integers(1, 20).map("crash {}".format)
FAULTS = CRASHES | st.sampled_from(
    ["503 pods", "503 resize", "403 resize", "409 pods", "touch s1", "touch g2", "wait"]
)


class Halving:
    """Halves what a pod asks for at the moment: asked twice, it would be a quarter."""

    def place(self, pod: PodRecord, raw: Mapping[str, Any]) -> Placing | None:
        now = parse_quantity(raw["spec"]["containers"][0]["resources"]["requests"]["cpu"])
        cut = {"requests": {"cpu": f"{int(now * 500)}m"}}
        return Placing(pod.uid, ("n1",), False, (ContainerResize("main", cut),))

    def forget(self, uid: str) -> None:
        pass


class World:
    """A server with two pods of their own and a gang of three, all gated, and a process that may die."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self.server, self.now, self.left = server, 0.0, NEVER
        self.api = connect(server.kubeconfig(folder / "kubeconfig"))
        self.leader = Leader(self.api, LeaseSettings("shoal", "default", "a"), self._lead_clock)
        assert self.leader.try_acquire_or_renew()
        server.create("nodes", node("n1"))
        labels, size = {"shoal.dev/gang": "g"}, {"shoal.dev/gang-size": "3"}
        for name in SINGLE:
            server.create("pods", pod(name, cpu="1", gates=[GATE]))
        for name in GANG:
            server.create("pods", pod(name, cpu="1", gates=[GATE], labels=labels, annotations=size))
        self.crash()

    def _lead_clock(self) -> float:
        """The clock that is asked before every write; far beyond the lease once the process is dead."""
        self.left -= 1
        return 0.0 if self.left >= 0 else 1e9

    def crash(self) -> None:
        """A new process in the place of the old one."""
        self.left = NEVER
        self.cluster = LiveCluster()
        events = Events(self.api, "test", lambda: self.now)
        self.gates = Gates(self.api, self.leader, self.cluster, Halving(), events, clock=lambda: self.now)
        self.cluster.subscribe(self.gates.pod_changed)

    def suffer(self, fault: str) -> None:
        kind, _, what = fault.partition(" ")
        if kind == "crash":
            self.left = int(what)  # dies before so many more writes, and is replaced
        elif kind == "touch":
            self.server.patch("pods", what, {"metadata": {"labels": {"t": str(self.now)}}})
        elif kind != "wait":
            self.server.error(int(kind), count=1, path="/resize" if what == "resize" else "/pods/")

    def step(self) -> None:
        self.now += 1.0
        self.cluster.replace("Node", self.server.objects("nodes"))
        self.cluster.replace("Pod", self.server.objects("pods"))
        self.gates.step()
        if self.left < NEVER // 2:
            self.crash()

    def gated(self, name: str) -> bool:
        return bool(self.server.get("pods", name)["spec"].get("schedulingGates"))

    def cpu(self, name: str) -> str:
        return str(self.server.get("pods", name)["spec"]["containers"][0]["resources"]["requests"]["cpu"])


@settings(deadline=None, derandomize=True, max_examples=25)
@given(st.lists(FAULTS, max_size=8))
def test_every_pod_comes_free_and_nothing_happens_twice(faults: list[str]) -> None:
    with ApiServer() as server, tempfile.TemporaryDirectory() as folder:
        world = World(server, Path(folder))
        for fault in faults:
            world.suffer(fault)
            world.step()
            assert all(world.cpu(name) in ("1", "500m") for name in SINGLE + GANG)
        for _ in range(8):  # faults that nobody met yet are met now
            world.step()
        world.now += 100.0
        for _ in range(8):
            world.step()
            world.now += 31.0
        assert not any(world.gated(name) for name in SINGLE + GANG)
        assert all(world.cpu(name) in ("1", "500m") for name in SINGLE + GANG)
