# SPDX-License-Identifier: Apache-2.0
"""What pods were measured to use: known while it is fresh, unknown otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal_client.actuate.pod_use import MeasuredUse
from shoal_client.collect.measured import Measured, PodUse
from shoal_client.state.live import LiveCluster
from shoal_common.fields import Field
from shoal_common.manifests import read_pod
from shoal_simulations.control_plane import ApiServer
from shoal_simulations.control_plane.builders import node, pod

OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r-1", "controller": True}


def test_cores_and_the_largest_pod_of_an_owner(
    server: ApiServer, cluster: LiveCluster, observe: Callable[[], None], clock: Any
) -> None:
    server.create("nodes", node("n1"))
    for name in "ab":
        server.create("pods", pod(name, owner=OWNER, node_name="n1"))
    observe()
    use = MeasuredUse(cluster, clock)
    new = read_pod(Field("t", "", pod("c", owner=OWNER)))
    assert use.cores() == {}
    assert use.memory_bytes(new) is None
    pods = {("default", "a"): PodUse(250.0, 1e9), ("default", "b"): PodUse(None, 2e9)}
    use.measured({"n1": Measured(pods=pods)})
    assert use.cores() == {("default", "a"): 0.25}
    assert use.memory_bytes(new) == 2e9
    assert use.memory_bytes(read_pod(Field("t", "", pod("d")))) is None
    clock.now = 181.0
    assert use.cores() == {}
    assert use.memory_bytes(new) is None
