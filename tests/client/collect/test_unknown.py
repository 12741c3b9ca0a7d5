# SPDX-License-Identifier: Apache-2.0
"""What missing, old and odd measurements do to the cluster's state and to decisions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shoal_client.collect.collector import Collector, CollectorSettings
from shoal_client.collect.measured import Measured, PodUse
from shoal_client.collect.prometheus import PrometheusClient
from shoal_client.state.live import LiveCluster
from shoal_common.cluster import N_EXISTS, U_CPU_WANTED, U_GPU, U_MEMORY_WANTED
from shoal_common.features import NODE_FEATURES, encode_node
from shoal_common.fields import Field
from shoal_common.manifests import read_pod
from shoal_common.tables import pod_row
from shoal_simulations.control_plane import node, pod

from .conftest import TRAIN, train, versioned

SETTINGS = CollectorSettings(interval_seconds=600, window_seconds=2.0)


def use(live: LiveCluster, name: str, column: int) -> float:
    return float(live.cluster.use[live.row(name), column])


def load_features(live: LiveCluster, name: str) -> dict[str, float]:
    row, cluster = live.row(name), live.cluster
    out = np.zeros(len(NODE_FEATURES), dtype=np.float32)
    encode_node(cluster.node[row], cluster.use[row], cluster.gpu_free[row], cluster.zone_free[row], out)
    return {f.name: float(x) for f, x in zip(NODE_FEATURES, out, strict=True)}


@pytest.fixture
def two() -> LiveCluster:
    """Two equal nodes, each with a pod that asks for three of four cores."""
    live = LiveCluster()
    live.replace("Node", [versioned(node(name, cpu=4, memory="16Gi")) for name in ("told", "untold")])
    pods = [pod(f"on-{name}", cpu=3, memory="8Gi", node_name=name) for name in ("told", "untold")]
    live.replace("Pod", [versioned(p, phase="Running") for p in pods])
    return live


def test_case_40_a_node_without_metrics_is_no_idle_node(two) -> None:
    two.measure({"told": Measured(cpu_millicores=1000.0, memory_bytes=2.0**32), "untold": Measured()})
    assert use(two, "told", U_CPU_WANTED) == 1000
    assert use(two, "untold", U_CPU_WANTED) == 3000  # what its pods request, not 0
    assert use(two, "untold", U_MEMORY_WANTED) == 8 * 2**30
    assert load_features(two, "untold")["cpu_load"] > load_features(two, "told")["cpu_load"]
    two.measure({})  # Prometheus is gone altogether
    for name in ("told", "untold"):
        assert use(two, name, U_CPU_WANTED) == 3000
        assert load_features(two, name)["empty"] == 0


def test_case_40_without_prometheus_at_all(nodes) -> None:
    Collector(PrometheusClient("http://127.0.0.1:9"), nodes, [nodes.measure], SETTINGS).collect()
    assert use(nodes, "worker-a", U_CPU_WANTED) == 2000


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"told": Measured()},
        {"told": Measured(cpu_millicores=4000.0), "untold": Measured(cpu_millicores=4000.0)},  # all are hot
        {"told": Measured(cpu_millicores=1e9, memory_bytes=1e15, io=1e6, failures=1e6)},
    ],
)
def test_case_42_metrics_never_make_a_node_infeasible(two, table) -> None:
    wanted = read_pod(Field("test", "", versioned(pod("new", cpu="500m", memory="1Gi"))))
    two.measure(table)
    for name in ("told", "untold"):
        assert two.insufficient(name, wanted) == ()
    assert two.cluster.feasible(pod_row(wanted))[two.rows(["told", "untold"])].all()


def test_case_42_an_old_value_does_not_stay() -> None:
    clock = [0.0]
    live = LiveCluster(clock=lambda: clock[0])
    live.replace("Node", [versioned(node("a", cpu=4))])
    live.replace("Pod", [versioned(pod("p", cpu=1, node_name="a"), phase="Running")])
    live.measure({"a": Measured(cpu_millicores=3900.0)})
    assert use(live, "a", U_CPU_WANTED) == 3900
    live.measure({"a": Measured()})  # the collector's next round: too old to be told
    assert use(live, "a", U_CPU_WANTED) == 1000


def test_case_43_a_pod_that_ended_after_the_sample_takes_its_share_with_it(site, nodes) -> None:
    tables = []
    Collector(site.client, nodes, [nodes.measure, tables.append], SETTINGS).collect()
    share = tables[0]["worker-a"].pods["ml", TRAIN]
    before = use(nodes, "worker-a", U_CPU_WANTED), use(nodes, "worker-a", U_MEMORY_WANTED)
    assert before[0] == pytest.approx(2200, rel=0.15)
    nodes.apply("Pod", "MODIFIED", train(2, "Succeeded"))
    after = use(nodes, "worker-a", U_CPU_WANTED), use(nodes, "worker-a", U_MEMORY_WANTED)
    assert after[0] == pytest.approx(before[0] - share.cpu_millicores)
    assert after[1] == pytest.approx(before[1] - share.memory_bytes)


def test_a_pod_that_came_after_the_sample_is_added(two) -> None:
    sample = Measured(cpu_millicores=1000.0, pods={("default", "on-told"): PodUse(900.0)})
    two.measure({"told": sample})
    late = versioned(pod("late", cpu=1, node_name="told"), phase="Running")
    two.apply("Pod", "ADDED", late)
    assert use(two, "told", U_CPU_WANTED) == 2000  # measured, and what the newcomer requests
    late_too = {**sample.pods, ("default", "late"): PodUse(200.0)}
    two.measure({"told": replace(sample, cpu_millicores=1200.0, pods=late_too)})
    assert use(two, "told", U_CPU_WANTED) == 1200


def test_case_58_gpu_memory_used_outside_the_scheduler() -> None:
    live = LiveCluster()
    live.replace("Node", [versioned(node("g", gpus=2))])
    live.replace("Pod", [])
    row = live.row("g")
    assert live.cluster.gpu_free[row, :2].tolist() == [1000, 1000]
    live.measure({"g": Measured(gpu_memory_free=(0.25, 1.0))})  # somebody uses GPU 0
    assert sorted(live.cluster.gpu_free[row, :2]) == [250, 1000]
    assert use(live, "g", U_GPU) == 750
    live.apply("Pod", "ADDED", versioned(pod("p", gpus=1, node_name="g"), phase="Running"))
    assert sorted(live.cluster.gpu_free[row, :2])[0] == 0  # accounted is the smaller one now
    assert live.cluster.node[row, N_EXISTS] == 1
    live.measure({"g": Measured(gpu_memory_free=(1.0, 1.0))})  # a pod that uses nothing frees nothing
    assert sorted(live.cluster.gpu_free[row, :2]) == [0, 1000]
