# SPDX-License-Identifier: Apache-2.0
"""FGD on Kubernetes records by hand."""

from __future__ import annotations

from fractions import Fraction

from shoal_common.kube.snapshot import Snapshot
from shoal_common.pods import NodeRecord, PodRecord
from shoal_common.requests import ContainerResources, PodResources
from shoal_common.scorers.fgd_snapshot import GPU, fragmentation, score_snapshot


def pod(gpus: int, node: str = "") -> PodRecord:
    asked = {"cpu": Fraction(1), **({GPU: Fraction(gpus)} if gpus else {})}
    return PodRecord(f"p{gpus}{node}", node_name=node, resources=PodResources((ContainerResources(asked),)))


def node(name: str, gpus: int, cpu_cores: int = 64) -> NodeRecord:
    return NodeRecord(name, {}, {"cpu": cpu_cores * 1000, "memory": 2**36, "pods": 110, GPU: gpus})


def test_a_pod_goes_where_it_removes_fragments() -> None:
    # Typical: two 2-GPU pods and a 1-GPU pod. The single device of `one` is waste to 2-GPU pods: taking it
    # removes 2/3 * 1000 milli-GPU; taking one of two on `two` leaves such waste where there was none.
    snapshot = Snapshot((node("one", 1), node("two", 2), node("busy", 8)), (pod(2, "busy"), pod(2, "busy")))
    verdict = score_snapshot(snapshot, pod(1))
    # sigmoid(2/3) = 0.66; sigmoid(-2/3) = 0.33; four of eight in use: 4 -> 3 devices still host a 2-GPU pod
    assert verdict.total == {"one": 66, "two": 33, "busy": 50}


def test_infeasible_nodes_are_refused_as_by_kube_scheduler() -> None:
    verdict = score_snapshot(Snapshot((node("none", 0), node("two", 2))), pod(1))
    assert verdict.feasible == ("two",)
    assert verdict.failures == {"none": (f"Insufficient {GPU}",)}


def test_case_52_two_four_and_four_devices_hold_jobs_of_two_four_and_four() -> None:
    # kubernetes#68036 and others: 4 devices are free over the nodes and the last job of 4 cannot run.
    nodes, waiting = (node("a", 4), node("b", 4), node("c", 2)), (pod(2), pod(4), pod(4))
    placed: list[PodRecord] = []
    for job, gpus in enumerate((2, 4, 4)):
        verdict = score_snapshot(Snapshot(nodes, (*placed, *waiting[job:])), pod(gpus))
        best = max(verdict.total, key=lambda name: (verdict.total[name], name))
        placed.append(pod(gpus, best))
    assert placed[0].node_name == "c"
    assert sorted(p.node_name for p in placed) == ["a", "b", "c"]
    good = fragmentation(Snapshot(nodes, (pod(2, "c"), pod(4), pod(4))))
    bad = fragmentation(Snapshot(nodes, (pod(2, "a"), pod(4), pod(4))))
    assert (good.idle, bad.idle) == (8000, 8000)
    assert good.unusable == 0
    # two of three pods ask for 4, which the 2 devices left on `a` and the 2 on `c` do not hold
    assert bad.unusable == 4000 * 2 / 3


def test_without_devices_or_pods_nothing_is_fragmented() -> None:
    assert fragmentation(Snapshot((node("none", 0),), (pod(1),))) == (0, 0.0)
    assert fragmentation(Snapshot((node("two", 2),))) == (2000, 0.0)
