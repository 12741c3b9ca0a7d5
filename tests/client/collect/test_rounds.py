# SPDX-License-Identifier: Apache-2.0
"""Rounds against a real Prometheus with recorded exporters: values by hand, joins, odd samples, MIG."""

from __future__ import annotations

import math
import time

import pytest

from shoal_client.collect.features import COLUMN, LIVE_FEATURES, QUERIES
from shoal_client.collect.rounds import Questioner, Round
from shoal_client.collect.values import LiveValues

from .conftest import six_nodes

WINDOW = 2.0


def ask(site, nodes) -> tuple[Round, LiveValues]:
    values = LiveValues().copy(nodes.nodes)
    return questioner(site, nodes).ask(values), values


def questioner(site, nodes) -> Questioner:
    asks = Questioner(site.client, WINDOW)
    asks.know(nodes.nodes)
    return asks


@pytest.fixture(scope="module")
def asked(site):
    return ask(site, six_nodes())


def value(values: LiveValues, node: str, name: str) -> float | None:
    found = values.get(node, name, time.monotonic())
    return None if found is None else found[0]


def test_no_query_is_refused(asked) -> None:
    assert asked[0].refused == {}


def test_every_feature_has_a_value_on_some_node(asked) -> None:
    _, values = asked
    known = values.matrix(time.monotonic()).known.any(axis=0)
    assert [f.name for f, there in zip(LIVE_FEATURES, known, strict=True) if not there] == []


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("cpu_idle", 0.425),  # three cores at 0.5, one at 0.2
        ("cpu_used", 2200.0),  # 3 x 475 + 775 millicores
        ("cpu_busiest", 0.8),
        ("load_1m", 0.6),
        ("context_switches", 2000.0),
        ("run_queue_wait", 0.08),
        ("cpu_frequency", 0.75),
        ("pressure_io_full", 0.03),
        ("memory_used", 8 * 2.0**30),
        ("memory_available", 0.5),
        ("hugepages_free", 0.25),
        ("swap_used", 0.25),
        ("numa_misses", 10.0),
        ("disk_busiest", 0.3),  # not the dm device above it
        ("disk_read", 7e6),
        ("disk_read_latency", 0.002),  # 0.2 s over 100 reads
        ("disk_free", 0.1),
        ("network_sent", 25e6),  # neither lo nor veth
        ("network_busiest", 0.2),
        ("tcp_retransmitted", 0.002),
        ("conntrack_used", 0.1),
        ("package_watts", 100.0),
        ("machine_watts", 184.0),
        ("temperature", 61.0),
        ("file_handles_used", 0.1),
        ("root_cpu", 2150.0),
        ("pods_cpu", 1500.0),  # neither the pod's own cgroup nor its pause container
        ("pods_memory", 5e9),
        ("pods_throttled", 0.25),
        ("pods_running", 2.0),
        ("ready", 1.0),
        ("memory_pressure", 0.0),
        ("cpu_requests", 2000.0),
        ("memory_limits", 9.0 * 2**30),
        ("pods_assigned", 2.0),
        ("tcp_retransmits", 3.0),
    ],
)
def test_a_value_of_a_worker(asked, name: str, wanted: float) -> None:
    assert value(asked[1], "worker-a", name) == pytest.approx(wanted, rel=0.15, abs=1e-9)


def test_a_node_that_no_exporter_tells_about_has_no_value(asked) -> None:
    _, values = asked
    table = values.matrix(time.monotonic())
    assert not table.known[table.nodes.index("none-f")].any()


def test_an_exporter_that_is_no_node_of_the_cluster_is_told(asked) -> None:
    unmatched = asked[0].sources["node"].unmatched
    assert [labels["instance"].split(":")[0] for labels in unmatched] == ["127.0.0.77"]


def test_ages_are_those_of_the_last_scrape(asked) -> None:
    done, values = asked
    assert 0 <= done.sources["node"].nodes["worker-a"] < 5
    found = values.get("worker-a", "cpu_used", time.monotonic())
    assert found is not None
    assert found[1] < 10


def test_rates_of_what_is_younger_than_the_window_are_unknown(site) -> None:
    live, values = six_nodes(), LiveValues().copy(six_nodes().nodes)
    asks = Questioner(site.client, 3600.0)
    asks.know(live.nodes)
    done = asks.ask(values)
    assert "worker-a" in asks.sources()["node"].nodes  # the exporter is found all the same
    assert value(values, "worker-a", "cpu_used") is None
    assert value(values, "worker-a", "pods_cpu") is None
    assert value(values, "worker-a", "machine_watts") == 184  # no rate
    assert done.pods == {}


def test_pods_use_what_their_containers_use(asked) -> None:
    pods = asked[0].pods["worker-a"]
    assert set(pods) == {("shop", "web-6d4b75cb6d-hx2lp"), ("ml", "train-0")}
    assert pods["ml", "train-0"].cpu_millicores == pytest.approx(900.0, rel=0.15)
    assert pods["ml", "train-0"].memory_bytes == 4e9


def test_case_39_samples_that_say_nothing(site, nodes, asked) -> None:
    done, values = asked
    table = values.matrix(time.monotonic())
    odd = table.nodes.index("odd-d")
    for name in ("load_1m", "load_5m", "load_15m"):  # NaN, +Inf, -Inf
        assert value(values, "odd-d", name) is None
    assert value(values, "odd-d", "disk_free") is None  # an empty vector
    assert value(values, "odd-d", "cpu_used") == pytest.approx(2200, rel=0.15)  # the rest stands
    assert not table.known[table.nodes.index("twice-c"), COLUMN["cpu_used"]]  # two series of one node
    assert done.duplicates["cpu_used"] == 1
    assert math.isfinite(table.values.sum())
    assert table.values[odd, COLUMN["load_1m"]] == 0

    site.exporters["node-d"].scrapes -= 5  # a counter goes back a little: Prometheus takes it for a leap
    site.scraped(3)
    _, leapt = ask(site, nodes)
    assert value(leapt, "odd-d", "cpu_used") is None
    site.exporters["node-d"].restart()  # its machine starts again
    site.scraped(10)
    reset = value(ask(site, nodes)[1], "odd-d", "cpu_used")
    assert reset == pytest.approx(2200, rel=0.2)


def test_case_39_a_gap_of_an_exporter(site, nodes) -> None:
    _, values = ask(site, nodes)
    before = value(values, "gone-e", "load_1m")
    site.exporters["node-e"].text = "broken exposition {"
    site.scraped(3)  # Prometheus marks the series stale
    again = questioner(site, nodes)
    again.ask(values)
    at = time.monotonic()
    assert before is not None
    assert value(values, "gone-e", "load_1m") == before  # the last good value, with its age
    assert values.get("gone-e", "load_1m", at + 60)[1] >= 60
    assert values.get("gone-e", "load_1m", at + 310) is None  # then nothing: requests count
    fresh = LiveValues().copy(nodes.nodes)
    again.look_back(fresh, [q for q in QUERIES if q.name in ("load_1m", "cpu_used")])
    assert value(fresh, "gone-e", "load_1m") == before  # a client that was started in the gap
    assert value(fresh, "twice-c", "cpu_used") is None


def test_case_44_gpu_activity_under_mig(asked) -> None:
    _, values = asked
    # GPU 0 is whole and 0.9 active. GPU 1: 3 of 7 slices at 0.7 and 2 of 7 at 0.35, the rest in no instance.
    of_mig = 0.7 * 3 / 7 + 0.35 * 2 / 7
    assert value(values, "gpu-b", "gpu_active") == pytest.approx((0.9 + of_mig) / 2)
    assert value(values, "gpu-b", "gpu_memory_active") == pytest.approx(
        (0.45 + (0.28 * 3 + 0.07 * 2) / 7) / 2
    )
    # GPU_UTIL 0 under MIG is unknown: only GPU 0 counts, though it is repeated for each pod that shares it
    assert value(values, "gpu-b", "gpu_utilisation") == pytest.approx(0.8)
    # power is the device's, repeated for each instance
    assert value(values, "gpu-b", "gpu_watts") == pytest.approx(310.5 + 129.5)
    assert value(values, "gpu-b", "gpu_memory_used") == 30411 + 4992 + 4928


def test_free_gpu_memory_by_device(asked) -> None:
    sampled, shares = asked[0].gpu_free["gpu-b"]
    assert sampled <= time.monotonic()
    assert shares == pytest.approx((10137 / 40548, (0.75 * 3 + 0.5 * 2) / 5))


def test_a_node_whose_gpus_are_all_partitioned_has_no_utilisation(site) -> None:
    product = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-3g.20gb"}
    _, values = ask(site, six_nodes(labels=product))
    assert value(values, "gpu-b", "gpu_utilisation") is None
    assert value(values, "gpu-b", "gpu_active") is not None
