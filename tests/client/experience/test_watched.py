# SPDX-License-Identifier: Apache-2.0
"""A bind that was seen after the fact: the tables as they were before it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_client.experience.watched import take_off, watched
from shoal_common.cluster import MAX_GPUS, MAX_ZONES, NODE_COLUMNS, U_GPU, U_REMAINING, USE_COLUMNS
from shoal_common.pods import NodeRecord, PodRecord
from shoal_common.requests import ContainerResources, PodResources
from shoal_common.selectors import Taint
from shoal_common.tables import fill, pod_row

GIB = 1024**3
NODE = NodeRecord("n", allocatable={"cpu": 64_000, "memory": 256 * GIB, "pods": 110, "nvidia.com/gpu": 8})


def _pod(cpu, memory, gpus=0):
    requests = {"cpu": cpu / 1000, "memory": memory} | ({"nvidia.com/gpu": gpus} if gpus else {})
    from fractions import Fraction

    exact = {name: Fraction(amount).limit_denominator(1000) for name, amount in requests.items()}
    return PodRecord("p", node_name="n", resources=PodResources((ContainerResources(requests=exact),)))


def _filled(pods, node=NODE):
    shapes = (NODE_COLUMNS,), (USE_COLUMNS,), (MAX_GPUS,), (MAX_ZONES, 2)
    rows = tuple(np.zeros(shape) for shape in shapes)
    fill(node, pods, *rows)
    return rows


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    others=st.lists(st.tuples(st.integers(0, 9_000), st.integers(0, 20), st.integers(0, 1)), max_size=5),
    cpu=st.integers(1, 9_000),
    gpus=st.integers(0, 2),
    zones=st.sampled_from(["1", "2", "4"]),
)
def test_a_pod_taken_off_leaves_its_node_as_without_it(others, cpu, gpus, zones):
    node = replace(NODE, annotations={"shoal.dev/numa-zones": zones})
    rest, pod = [_pod(c, m * GIB, g) for c, m, g in others], _pod(cpu, GIB, gpus)
    row, use, gpu, zone = _filled([*rest, pod], node)
    _, expected, devices, zones_before = _filled(rest, node)
    take_off(row, use, gpu, zone, pod_row(pod))
    use[U_REMAINING] = expected[U_REMAINING]  # a mean that records alone do not tell; see test_recorder_live
    np.testing.assert_allclose(use, expected, atol=1e-6)
    np.testing.assert_array_equal(np.sort(gpu), np.sort(devices))
    np.testing.assert_allclose(zone.sum(0), zones_before.sum(0))
    assert use[U_GPU] == expected[U_GPU]


def test_only_nodes_that_admit_the_pod_stand_beside_the_bound_one(make_world, tmp_path, new_pod):
    from shoal_client.experience.store import ExperienceStore

    with ExperienceStore(tmp_path) as store:
        live = make_world(store, nodes=6).live
    live.nodes["node-1"] = replace(live.nodes["node-1"], taints=(Taint("k", "v", "NoSchedule"),))
    live.nodes["node-2"] = replace(live.nodes["node-2"], unschedulable=True)
    live.nodes["node-3"] = replace(live.nodes["node-3"], ready=False)
    live.nodes["node-4"] = replace(live.nodes["node-4"], labels={"disk": "ssd"})
    full = new_pod("full", cpu="16", node_name="node-5", phase="Running")
    pod = new_pod("u", cpu="2", node_name="node-0")
    live.pods = {"full": full, "u": pod}
    rng = np.random.default_rng(0)
    seen, at = watched(live, pod, pod_row(pod), pod_row(pod), "node-0", rng)
    assert (seen.names, at) == (("node-0", "node-4"), 0)
    picky = replace(pod, node_name="node-4", node_selector={"disk": "ssd"})
    live.pods["u"] = picky
    seen, at = watched(live, picky, pod_row(picky), pod_row(picky), "node-4", rng)
    assert (seen.names, at) == (("node-4",), 0)
    assert watched(live, picky, pod_row(picky), pod_row(picky), "gone", rng) is None
