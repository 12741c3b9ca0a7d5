# SPDX-License-Identifier: Apache-2.0
"""The live cluster's state: what counts where, what is promised, what is measured, and who is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal_client.collect.measured import Measured, PodUse
from shoal_client.state.inventory import MEASURED_SECONDS
from shoal_client.state.live import CHUNK, LiveCluster, PodChange
from shoal_client.state.node_health import BACKOFF_SECONDS, MOST_FAILURES, REJECTIONS, WINDOW_SECONDS
from shoal_client.state.reservations import CEILING_SECONDS, UNSEEN_SECONDS
from shoal_common.cluster import (
    N_CPU,
    N_EXISTS,
    N_GPUS,
    N_SPEED,
    U_CPU,
    U_CPU_NONZERO,
    U_CPU_WANTED,
    U_FAILURES,
    U_GPU,
    U_LOAD,
    U_MEMORY_NONZERO,
    U_MEMORY_WANTED,
    U_PODS,
    U_REMAINING,
    U_UP,
)
from shoal_common.fields import Field
from shoal_common.manifests import read_pod
from shoal_common.pods import PodRecord
from shoal_common.tables import App
from shoal_simulations.live_events import Object, differences, seen_node, seen_pod

GPU, MIG = "nvidia.com/gpu", "nvidia.com/mig-1g.5gb"


class Clock:
    """A monotonic clock that tests move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def live(clock: Clock) -> LiveCluster:
    """Synced and empty."""
    live = LiveCluster(clock)
    live.replace("Node", ())
    live.replace("Pod", ())
    return live


def record(content: Object) -> PodRecord:
    return read_pod(Field("pod", "", content))


def see(live: LiveCluster, *objects: Object, event: str = "ADDED") -> None:
    """Events of these objects, each of a new version."""
    for content in objects:
        see.version += 1  # type: ignore[attr-defined]
        content["metadata"]["resourceVersion"] = str(see.version)  # type: ignore[attr-defined]
        live.apply(content["kind"], event, content)


see.version = 100  # type: ignore[attr-defined]


def use(live: LiveCluster, name: str, column: int) -> float:
    return float(live.cluster.use[live.row(name), column])


def test_tables_hold_what_the_records_say(live: LiveCluster) -> None:
    see(live, seen_node("n1", cpu="4", gpus=2, annotations={"shoal.dev/speed": "1.5"}))
    see(live, seen_pod("p1", "n1", cpu="500m", gpus=1), seen_pod("p2"))
    row = live.row("n1")
    node = live.cluster.node[row]
    assert (node[N_CPU], node[N_GPUS], node[N_SPEED]) == (4000, 2, 1.5)
    assert (use(live, "n1", U_CPU), use(live, "n1", U_PODS), use(live, "n1", U_GPU)) == (500, 1, 1000)
    assert (live.pending, live.synced) == (1, True)
    assert live.rows(["n1", "n2"]).tolist() == [row, -1]
    assert live.take_changed().tolist() == [row]
    assert live.take_changed().tolist() == []


def test_a_row_is_given_back_and_used_again(live: LiveCluster) -> None:
    see(live, *(seen_node(f"n{i}") for i in range(40)))
    row = live.row("n7")
    see(live, seen_node("n7"), event="DELETED")
    assert live.cluster.node[row, N_EXISTS] == 0
    assert live.cluster.names[row] == ""
    see(live, seen_node("other"))
    assert live.row("other") == row
    assert differences(live) == []


def test_case_14_a_reservation_holds_until_its_end_is_seen(live: LiveCluster, clock: Clock) -> None:
    see(live, seen_node("n1", cpu="1"), seen_node("n2", cpu="1"), seen_pod("p1", cpu="800m"))
    live.reserve(record(seen_pod("p1", cpu="800m")), "n1")
    other = record(seen_pod("p2", cpu="800m"))
    clock.now += 300  # no time alone gives it free
    assert live.insufficient("n1", other) == ("Insufficient cpu",)
    see(live, seen_pod("p1", "n2", cpu="800m"), event="MODIFIED")  # bound, elsewhere
    assert live.insufficient("n1", other) == ()
    assert live.insufficient("n2", other) == ("Insufficient cpu",)
    assert live.reserved == 0


@pytest.mark.parametrize("end", ["deleted", "refused", "released"])
def test_case_14_what_ends_a_reservation(live: LiveCluster, end: str) -> None:
    see(live, seen_node("n1", cpu="1"), seen_pod("p1", cpu="1"))
    live.reserve(record(seen_pod("p1", cpu="1")), "n1")
    see(live, seen_pod("p1", cpu="1", labels={"new": "label"}), event="MODIFIED")
    assert use(live, "n1", U_CPU) == 1000  # an unrelated change ends nothing
    if end == "deleted":
        see(live, seen_pod("p1", cpu="1"), event="DELETED")
    elif end == "refused":
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1"}
        see(live, seen_pod("p1", cpu="1", status={"conditions": [condition]}), event="MODIFIED")
    else:
        live.release("uid-p1")
    assert use(live, "n1", U_CPU) == 0


def test_case_14_a_ceiling_ends_what_nobody_ever_speaks_of_again(live: LiveCluster, clock: Clock) -> None:
    see(live, seen_node("n1", cpu="1"))
    see(live, seen_pod("silent", cpu="1"))
    live.reserve(record(seen_pod("silent", cpu="1")), "n1")
    clock.now += CEILING_SECONDS - 1
    assert use(live, "n1", U_CPU) == 1000
    clock.now += 2
    assert use(live, "n1", U_CPU) == 0


def test_a_pod_that_was_gone_before_it_was_decided_holds_no_room_for_long(
    live: LiveCluster, clock: Clock
) -> None:
    see(live, seen_node("n1", cpu="2"), seen_pod("gone", cpu="1"))
    see(live, seen_pod("gone", cpu="1"), event="DELETED")
    live.reserve(record(seen_pod("gone", cpu="1")), "n1")
    clock.now += 1
    live.reserve(record(seen_pod("late", cpu="1")), "n1")
    clock.now += UNSEEN_SECONDS - 2
    assert use(live, "n1", U_CPU) == 2000
    see(live, seen_pod("late", cpu="1"))
    clock.now += 2
    assert use(live, "n1", U_CPU) == 1000  # of the one that the watch has shown since


def test_case_16_half_devices_fill_two_a_card(live: LiveCluster) -> None:
    node = seen_node("n1", labels={"nvidia.com/gpu.count": "8"}, resources={GPU: 80})
    see(live, node)
    halves = [record(seen_pod(f"p{i}", resources={GPU: 1, "nvidia.com/gpucores": 50})) for i in range(17)]
    node["status"]["allocatable"]["nvidia.com/gpucores"] = "800"
    see(live, node, event="MODIFIED")
    for half in halves[:16]:
        assert live.try_reserve(half, "n1") == ()
    assert live.cluster.gpu_free[live.row("n1")].tolist() == [0.0] * 8
    assert "Insufficient nvidia.com/gpu (share)" in live.try_reserve(halves[16], "n1")
    assert live.reserved == 16


def test_case_17_events_twice_and_in_any_order(live: LiveCluster) -> None:
    first, second = seen_pod("p1", "n1", cpu="1", version=1), seen_pod("p1", "n1", cpu="2", version=2)
    for event, content in (
        ("MODIFIED", second), ("ADDED", first), ("ADDED", first), ("DELETED", first), ("DELETED", first),
        ("ADDED", second), ("MODIFIED", second),
    ):  # fmt: skip
        live.apply("Pod", event, content)
    see(live, seen_node("n1"))
    assert differences(live) == []
    assert (use(live, "n1", U_CPU), use(live, "n1", U_PODS)) == (2000, 1)


def test_case_19_pods_wait_for_their_node_and_readiness_for_both_lists() -> None:
    live = LiveCluster()
    live.replace("Pod", [seen_pod("p1", "n1", cpu="1")])
    assert not live.synced
    assert live.row("n1") == -1
    live.replace("Node", [seen_node("n1")])
    assert live.synced
    assert use(live, "n1", U_CPU) == 1000


def test_case_20_the_next_decision_sees_room_that_was_just_promised(live: LiveCluster) -> None:
    see(live, seen_node("n1", cpu="3"))
    decided = [live.try_reserve(record(seen_pod(f"p{i}", cpu="1")), "n1") for i in range(5)]
    assert decided == [(), (), (), ("Insufficient cpu",), ("Insufficient cpu",)]
    assert use(live, "n1", U_CPU) == 3000
    live.reserve(record(seen_pod("p0", cpu="1")), "n1")  # decided again: replaced, not added
    assert use(live, "n1", U_CPU) == 3000
    assert live.insufficient("n1", record(seen_pod("p0", cpu="1"))) == ()  # nobody is in his own way


def test_case_21_a_lost_device_leaves_nothing_free_and_the_others_alone(live: LiveCluster) -> None:
    see(live, seen_node("n1", gpus=8), *(seen_pod(f"p{i}", "n1", gpus=2) for i in range(4)))
    see(live, seen_node("n1", gpus=6), event="MODIFIED")
    row = live.row("n1")
    assert (live.cluster.gpu_free[row] == 0).all()
    assert use(live, "n1", U_GPU) == 6000
    assert live.insufficient("n1", record(seen_pod("new", gpus=1))) == (f"Insufficient {GPU}",)
    assert live.insufficient("n1", record(seen_pod("plain"))) == ()
    daemon = seen_pod("plugin", owner={"kind": "DaemonSet", "name": "d", "uid": "d", "apiVersion": "apps/v1"})
    assert live.insufficient("n1", record(daemon)) == ()


def test_case_22_pods_of_another_scheduler_count_at_once_and_refused_ones_never(live: LiveCluster) -> None:
    see(live, seen_node("n1", cpu="2"), seen_pod("p1", "n1", cpu="1", spec={"schedulerName": "other"}))
    assert use(live, "n1", U_CPU) == 1000
    see(live, seen_pod("p2", "n1", cpu="2", phase="Failed", status={"reason": "OutOfcpu"}))
    assert (use(live, "n1", U_CPU), use(live, "n1", U_PODS)) == (1000, 1)


def test_case_36_pods_without_requests_are_load(live: LiveCluster) -> None:
    see(live, seen_node("n1"), *(seen_pod(f"p{i}", "n1", cpu=None, memory=None) for i in range(20)))
    assert (use(live, "n1", U_CPU), use(live, "n1", U_CPU_NONZERO)) == (0, 2000)
    assert use(live, "n1", U_MEMORY_NONZERO) == 20 * 200 * 2**20
    assert (use(live, "n1", U_CPU_WANTED), use(live, "n1", U_LOAD)) == (2000, 2000)
    assert use(live, "n1", U_MEMORY_WANTED) == 20 * 200 * 2**20


def test_case_46_flaps_are_counted_within_a_window_and_bounded(live: LiveCluster, clock: Clock) -> None:
    see(live, *(seen_node(f"n{i}") for i in range(3)))
    for _ in range(10):
        see(live, seen_node("n1", is_ready=False), seen_node("n1"), event="MODIFIED")
    assert use(live, "n1", U_FAILURES) == MOST_FAILURES
    assert use(live, "n0", U_FAILURES) == 0
    assert use(live, "n1", U_UP) == 1
    assert live.insufficient("n1", record(seen_pod("p"))) == ()  # a feature, never a quarantine
    live.take_changed()
    clock.now += WINDOW_SECONDS + 1
    assert use(live, "n1", U_FAILURES) == 0
    assert live.take_changed().tolist() == [live.row("n1")]


@pytest.mark.parametrize("deletion_seen", [True, False])
def test_case_49_a_node_of_the_same_name_and_a_new_uid_starts_empty(
    live: LiveCluster, deletion_seen: bool
) -> None:
    see(live, seen_node("n1", "first", cpu="2"), seen_pod("p1", "n1", cpu="2"))
    see(live, seen_node("n1", "first", is_ready=False), event="MODIFIED")
    live.reserve(record(seen_pod("p2", cpu="1")), "n1")
    live.measure({"n1": Measured(cpu_millicores=1999.0)})
    if deletion_seen:
        see(live, seen_node("n1", "first"), event="DELETED")
    see(live, seen_node("n1", "second", cpu="2"))
    assert [use(live, "n1", c) for c in (U_CPU, U_PODS, U_CPU_WANTED, U_FAILURES)] == [0, 0, 0, 0]
    assert differences(live) == []
    see(live, seen_pod("p1", "n1", cpu="2", labels={"kubelet": "says"}), event="MODIFIED")
    assert use(live, "n1", U_CPU) == 2000  # the API shows it on the new machine
    assert differences(live) == []


def test_case_55_mig_resources_are_read_whatever_their_profile(live: LiveCluster) -> None:
    odd = "nvidia.com/mig-1g.5gb.me"
    unknown = "nvidia.com/mig-9x.999gb"
    see(live, seen_node("n1", resources={MIG: 2, odd: 1, unknown: 1, GPU: 0}))
    for name in (odd, unknown):
        assert live.try_reserve(record(seen_pod(f"a{name[-5:]}", resources={name: 1})), "n1") == ()
        assert live.try_reserve(record(seen_pod("b", resources={name: 1})), "n1") == (f"Insufficient {name}",)
    assert live.insufficient("n1", record(seen_pod("c", resources={MIG: 2}))) == ()
    assert live.insufficient("n1", record(seen_pod("d", resources={MIG: 3}))) == (f"Insufficient {MIG}",)


def test_case_59_devices_are_distinct(live: LiveCluster) -> None:
    see(live, seen_node("one", gpus=1), seen_node("split", labels={"nvidia.com/gpu.count": "1"}, gpus=10))
    two = record(seen_pod("p", gpus=2))
    assert live.insufficient("one", two) == (f"Insufficient {GPU}",)
    shares = record(seen_pod("q", gpus=2, annotations={"shoal.dev/gpu-milli": "300"}))
    assert live.insufficient("split", shares) == (f"Insufficient {GPU} (share)",)


def refuse(live: LiveCluster, name: str, on: str, owner: str = "rs") -> None:
    """A pod of an owner that is bound and at once refused by its kubelet."""
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner}
    see(live, seen_pod(name, on, owner=reference))
    failed: dict[str, Any] = {"phase": "Failed", "status": {"reason": "TopologyAffinityError"}}
    see(live, seen_pod(name, on, owner=reference, **failed), event="MODIFIED")
    see(live, seen_pod(name, on, owner=reference, **failed), event="MODIFIED")  # told twice, counted once


def test_case_60_a_node_that_refuses_an_owners_pods_is_avoided_for_a_while(
    live: LiveCluster, clock: Clock
) -> None:
    see(live, *(seen_node(f"n{i}") for i in range(4)))
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs"}
    waiting = record(seen_pod("next", owner=reference))
    for i in range(REJECTIONS - 1):
        refuse(live, f"p{i}", "n1")
    assert live.rejecting(waiting) == ()
    refuse(live, "p9", "n1")
    assert live.rejecting(waiting) == ("n1",)
    assert live.rejecting(record(seen_pod("other"))) == ()
    assert live.insufficient("n1", waiting) == ()  # no filter: it becomes right by itself
    clock.now += BACKOFF_SECONDS + 1
    assert live.rejecting(waiting) == ()


def test_case_60_at_most_half_of_the_nodes_are_avoided(live: LiveCluster) -> None:
    see(live, *(seen_node(f"n{i}") for i in range(4)))
    for n in range(4):
        for i in range(REJECTIONS):
            refuse(live, f"p{n}{i}", f"n{n}")
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs"}
    assert live.rejecting(record(seen_pod("next", owner=reference))) == ("n2", "n3")


def test_case_60_free_room_by_zone_is_used_where_it_is_reported(live: LiveCluster) -> None:
    see(live, seen_node("n1", cpu="8", memory="16Gi"))
    zones = [
        {
            "name": f"node-{z}",
            "type": "Node",
            "resources": [
                {"name": "cpu", "capacity": "4", "allocatable": "4", "available": free},
                {"name": "memory", "capacity": "8Gi", "allocatable": "8Gi", "available": "4Gi"},
            ],
        }
        for z, free in enumerate(("1", "3"))
    ]
    topology = {"metadata": {"name": "n1", "uid": "t", "resourceVersion": "1"}, "zones": zones}
    live.apply("NodeResourceTopology", "ADDED", topology)
    assert live.cluster.zone_free[live.row("n1"), :3, 0].tolist() == [1000, 3000, 0]
    sides = {"limits": {"cpu": "2", "memory": "128Mi"}}
    live.reserve(record(seen_pod("exact", cpu="2", **sides)), "n1")  # Guaranteed: the exporter cannot know
    assert live.cluster.zone_free[live.row("n1"), :2, 0].tolist() == [0, 1000]
    live.replace("NodeResourceTopology", ())
    assert live.cluster.zone_free[live.row("n1"), 0, 0] == 6000


def test_case_64_summaries_tell_what_fits_on_one_node(live: LiveCluster) -> None:
    assert LiveCluster().summary().holds({"cpu": 1}) is None  # unknown is not infinite
    see(
        live,
        *(seen_node(f"n{i}", gpus=2, cpu="4") for i in range(4)),
        seen_node("off", gpus=8, is_ready=False),
    )
    see(live, *(seen_pod(f"p{i}", f"n{i}", gpus=1, cpu="1") for i in range(4)))
    summary = live.summary()
    assert summary.holds({GPU: 1, "cpu": 3000})
    assert summary.holds({GPU: 2}) is False  # four are free, on four nodes
    assert summary.holds({"cpu": 3001}) is False
    assert summary.holds({"unknown.example/thing": 1}) is False
    assert len(summary.rooms) == 1


def test_a_summary_of_many_kinds_of_nodes_keeps_the_largest_of_each_resource(live: LiveCluster) -> None:
    see(live, *(seen_node(f"n{i}", cpu=str(200 - i), memory=f"{100 + i}Gi") for i in range(100)))
    see(live, seen_node("gpu", cpu="1", memory="1Gi", gpus=8))
    summary = live.summary()
    assert len(summary.rooms) == 64
    assert summary.holds({GPU: 8, "cpu": 1000})
    assert summary.holds({"memory": 199 * 2**30})
    assert summary.holds({"cpu": 200_000})
    assert summary.holds({"cpu": 200_000, "memory": 199 * 2**30}) is False


def test_case_68_heartbeats_are_dropped_before_any_work(
    live: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    see(live, seen_node("n1"))
    live.take_changed()
    read = live._reader.node
    seen: list[Object] = []
    monkeypatch.setattr(
        type(live._reader), "node", lambda self, content: seen.append(content) or read(content)
    )
    beat = seen_node("n1")
    beat["status"]["conditions"][0]["lastHeartbeatTime"] = "2026-06-01T00:00:00Z"
    see(live, beat, event="MODIFIED")
    assert (seen, live.take_changed().tolist()) == ([], [])
    see(live, seen_node("n1", is_ready=False), event="MODIFIED")
    assert (len(seen), use(live, "n1", U_UP)) == (1, 0)


def test_changes_come_in_order_and_a_failing_subscriber_costs_nothing(live: LiveCluster) -> None:
    told: list[PodChange] = []

    def fails(change: PodChange) -> None:
        raise RuntimeError("subscriber")

    live.subscribe(fails)
    live.subscribe(told.append)
    see(live, seen_pod("p1", uid="a"), seen_pod("p1", "n1", uid="a"), seen_pod("p1", uid="b"))
    see(live, seen_pod("p1", uid="b"), event="DELETED")
    steps = [(c.before and c.before.node_name, c.after and c.after.uid) for c in told]
    assert steps == [(None, "a"), ("", "a"), ("n1", None), (None, "b"), ("", None)]
    assert live.pods == {}


def test_a_list_deletes_what_it_does_not_hold(live: LiveCluster) -> None:
    told: list[PodChange] = []
    see(live, seen_node("n1"), seen_pod("p1", "n1"), seen_pod("p2", "n1"))
    live.subscribe(told.append)
    kept = {"metadata": {"uid": "uid-p2", "name": "p2", "namespace": "default"}}
    kept["metadata"]["resourceVersion"] = live._versions["Pod"]["uid-p2"]
    live.replace("Pod", [kept])  # of a known version the identity is enough
    assert [(c.before and c.before.name, c.after) for c in told] == [("p1", None)]
    assert use(live, "n1", U_PODS) == 1


def test_an_unreadable_object_leaves_what_was_known(live: LiveCluster) -> None:
    see(live, seen_node("n1"), seen_pod("p1", "n1", cpu="1"))
    broken = seen_pod("p1", "n1", cpu="one core")
    see(live, broken, event="MODIFIED")
    assert use(live, "n1", U_CPU) == 1000


def test_measured_use_replaces_requests_and_pods_since_are_added(live: LiveCluster, clock: Clock) -> None:
    live.apps = lambda pod: App(cpu_use=100.0, duration_seconds=100.0) if pod.name != "p2" else None
    see(live, seen_node("n1"), seen_pod("p0", "n1", cpu="1"), seen_pod("p1", "n1", cpu="1"))
    assert use(live, "n1", U_CPU_WANTED) == 200
    clock.now += 50
    assert use(live, "n1", U_REMAINING) == 1.0  # as of its last change
    in_sample = {
        ("default", "p0"): PodUse(300.0),
        ("default", "p1"): PodUse(250.0),
        ("default", "old"): PodUse(50.0),
    }
    live.measure({"n1": Measured(cpu_millicores=600.0, memory_bytes=5e9, pods=in_sample)})
    assert use(live, "n1", U_REMAINING) == 0.5
    assert use(live, "n1", U_CPU_WANTED) == 550  # less what has gone since
    assert use(live, "n1", U_LOAD) == 550
    see(live, seen_pod("p2", "n1", cpu="1"))
    assert use(live, "n1", U_CPU_WANTED) == 1550  # and what has come since
    assert use(live, "n1", U_MEMORY_WANTED) == 5e9 + 128 * 2**20
    live.measure({"n1": Measured()})
    assert use(live, "n1", U_CPU_WANTED) == 1200  # unknown is never idle


def test_measurements_nobody_renews_are_forgotten(live: LiveCluster, clock: Clock) -> None:
    see(live, seen_node("n1"), seen_pod("p0", "n1", cpu="1"))
    live.measure({"n1": Measured(cpu_millicores=10.0)})
    assert use(live, "n1", U_CPU_WANTED) == 10
    clock.now += MEASURED_SECONDS + 1
    assert use(live, "n1", U_CPU_WANTED) == 1000


def test_device_memory_used_by_others_is_not_free(live: LiveCluster) -> None:
    see(live, seen_node("n1", gpus=2), seen_pod("p0", "n1", gpus=1))
    live.measure({"n1": Measured(gpu_memory_free=(0.9, 0.25))})
    assert sorted(live.cluster.gpu_free[live.row("n1"), :2]) == [0, 900]
    assert use(live, "n1", U_GPU) == 1100


def test_staleness_grows_until_the_api_is_heard(live: LiveCluster, clock: Clock) -> None:
    assert LiveCluster(clock).staleness_seconds("Pod") == float("inf")
    clock.now += 30
    assert live.staleness_seconds("Pod") == 30
    live.touch("Pod")
    assert live.staleness_seconds("Pod") == 0


def test_namespaces_services_and_slices_are_kept(live: LiveCluster) -> None:
    live.apply("Namespace", "ADDED", {"metadata": {"name": "a", "uid": "u", "labels": {"team": "x"}}})
    assert live.namespace_labels("a") == {"team": "x"}
    service = {"metadata": {"name": "s", "namespace": "a", "uid": "s"}, "spec": {"selector": {"app": "x"}}}
    live.apply("Service", "ADDED", service)
    spec = {"nodeName": "n1", "driver": "gpu.nvidia.com", "devices": [{"name": "gpu-0"}, {"name": "gpu-1"}]}
    live.apply("ResourceSlice", "ADDED", {"metadata": {"name": "r", "uid": "r"}, "spec": spec})
    assert [(s.node, s.devices) for s in live.slices] == [("n1", 2)]
    assert live.snapshot().services[0].selector == {"app": "x"}
    live.apply("Namespace", "DELETED", {"metadata": {"name": "a", "uid": "u"}})
    live.replace("Service", ())
    live.replace("ResourceSlice", ())
    assert (live.namespace_labels("a"), live.snapshot().services, live.slices) == ({}, (), [])


def test_what_a_pod_in_the_way_holds_can_be_left_out(live: LiveCluster) -> None:
    see(live, seen_node("n1", cpu="2"), seen_pod("big", "n1", cpu="2"))
    waiting, gone = record(seen_pod("w", cpu="1")), live.pods["uid-big"]
    assert live.insufficient("n1", waiting) == ("Insufficient cpu",)
    assert live.insufficient_without("n1", waiting, gone) == ()
    assert live.insufficient("nowhere", waiting) == ("node(s) not found",)
    assert np.array_equal(live.rows([]), np.array([], np.int64))


def test_no_decision_waits_for_the_measurement_of_a_whole_cluster(live: LiveCluster, clock: Clock) -> None:
    names = [f"n{i}" for i in range(3 * CHUNK)]
    see(live, *(seen_node(name, cpu="2") for name in names))
    live.take_changed()
    live._inventory.measure({name: Measured(cpu_millicores=500.0) for name in names}, clock())
    see(live, seen_pod("p1", names[-1], cpu="1"))
    changed = live.take_changed().tolist()
    assert live.row(names[-1]) in changed  # whatever else waits, pods never do
    assert len(changed) <= CHUNK + 1
    live.measure({name: Measured(cpu_millicores=700.0) for name in names})
    assert {use(live, name, U_CPU_WANTED) for name in names[:-1]} == {700.0}
    assert use(live, names[-1], U_CPU) == 1000
