# SPDX-License-Identifier: Apache-2.0
"""The loop: what listeners get, while Prometheus is there, when it goes, and when pods end."""

from __future__ import annotations

import math
import time

import pytest

from shoal_client import metrics
from shoal_client.collect.assemble import Assembler
from shoal_client.collect.collector import Collector, CollectorSettings
from shoal_client.collect.measured import Measured
from shoal_client.collect.prometheus import PrometheusClient
from shoal_client.state.live import LiveCluster
from shoal_simulations.control_plane import node, pod

from .conftest import TRAIN, WEB, train, until, versioned

SETTINGS = CollectorSettings(interval_seconds=600, window_seconds=2.0)


@pytest.fixture
def delivered() -> list[dict[str, Measured]]:
    return []


@pytest.fixture
def collector(site, nodes, delivered):
    return Collector(site.client, nodes, [delivered.append], SETTINGS)


def test_every_node_is_delivered_with_what_is_known(collector, delivered) -> None:
    collector.collect()
    (table,) = delivered
    assert set(table) == {"worker-a", "gpu-b", "twice-c", "odd-d", "gone-e", "none-f"}
    worker, gpu = table["worker-a"], table["gpu-b"]
    assert worker.cpu_millicores == pytest.approx(2200, rel=0.15)
    assert worker.memory_bytes == 8 * 2**30
    assert worker.io == pytest.approx(0.3 * 4, rel=0.15)  # in units of the node's I/O capacity
    assert worker.watts == 184  # the machine's meter before RAPL
    assert worker.failures == 0
    assert 0 < worker.age_seconds < 30
    assert gpu.gpu_busy == pytest.approx(0.65)
    assert gpu.gpu_memory_free_ratio == pytest.approx(sum(gpu.gpu_memory_free) / 2)
    assert gpu.watts is None  # its GPUs are known, its CPUs are not
    assert table["none-f"] == Measured()


def test_a_settled_round_reports_its_mapping(collector) -> None:
    collector.collect()
    assert metrics.METRICS_UNMATCHED.labels("node")._value.get() == 1
    assert metrics.METRICS_NODES.labels("dcgm")._value.get() == 1
    assert metrics.METRICS_REFUSED._value.get() == 0
    assert metrics.METRICS_AGE.labels("state")._value.get() < 5


def test_requested_and_used_shares(collector, nodes) -> None:
    big = pod("big", cpu="3500m", memory="1Gi", node_name="odd-d")
    nodes.apply("Pod", "ADDED", versioned(big, phase="Running"))
    collector.collect()
    assert metrics.CLUSTER_REQUESTED.labels("cpu")._value.get() == pytest.approx(5500 / 24000)
    assert metrics.CLUSTER_USED.labels("cpu")._value.get() == pytest.approx(0.55, rel=0.15)  # of 3 nodes


def test_a_pod_that_is_gone_is_not_in_a_sample(collector, nodes, delivered) -> None:
    collector.collect()
    assert set(delivered[0]["worker-a"].pods) == {("shop", WEB), ("ml", TRAIN)}
    nodes.apply("Pod", "MODIFIED", train(2, "Succeeded"))
    collector.collect()  # Prometheus still tells of it: a rate remembers as long as its window
    assert set(delivered[1]["worker-a"].pods) == {("shop", WEB)}
    assert delivered[1]["worker-a"].cpu_millicores == pytest.approx(1300, rel=0.15)
    assert delivered[1]["worker-a"].memory_bytes == 8 * 2**30 - 4e9


def test_values_become_unknown_with_age(collector) -> None:
    collector.collect()
    row = collector._state.cluster.node[0]
    for seconds, known in ((100, True), (200, False)):
        make = Assembler(collector._values, time.monotonic() + seconds)
        measured = make.measured("worker-a", row, (), {})
        assert (measured.memory_bytes is not None) == known


def test_without_prometheus_the_last_values_stand_and_nobody_fails(site, nodes, delivered) -> None:
    away = Collector(PrometheusClient("http://127.0.0.1:9"), nodes, [delivered.append], SETTINGS)
    away.collect()
    assert all(measured == Measured() for measured in delivered[0].values())
    before = metrics.METRICS_ROUNDS.labels("unavailable")._value.get()

    collector = Collector(site.client, nodes, [delivered.append], SETTINGS)
    collector.collect()
    collector._questions._client = PrometheusClient("http://127.0.0.1:9")
    collector.collect()
    assert delivered[-1]["worker-a"].memory_bytes == 8 * 2**30
    assert delivered[-1]["worker-a"].age_seconds > delivered[-2]["worker-a"].age_seconds
    assert metrics.METRICS_ROUNDS.labels("unavailable")._value.get() == before + 1


def test_a_listener_that_fails_costs_nobody_else_the_metrics(site, nodes, delivered) -> None:
    def fails(table: object) -> None:
        raise ValueError("no")

    Collector(site.client, nodes, [fails, delivered.append], SETTINGS).collect()
    assert len(delivered) == 1


def test_the_first_round_waits_for_nodes_and_pods(site, delivered) -> None:
    live = LiveCluster()
    collector = Collector(site.client, live, [delivered.append], SETTINGS)
    collector.collect()
    assert delivered == [{}]
    collector.start()
    live.replace("Node", [versioned(node("odd-d", cpu=4, address="127.0.0.5"))])
    live.replace("Pod", [])
    until(lambda: len(delivered) == 2)
    collector.stop()
    assert delivered[1]["odd-d"].memory_bytes == 8 * 2**30


def test_stop_ends_the_thread(collector, delivered) -> None:
    collector.start()
    until(lambda: len(delivered) == 1)
    collector.stop()
    assert not collector._thread.is_alive()


def test_the_matrix_has_no_nan(collector) -> None:
    collector.collect()
    table = collector.matrix()
    assert math.isfinite(table.values.sum())
    assert (table.values[~table.known] == 0).all()
