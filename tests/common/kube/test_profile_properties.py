# SPDX-License-Identifier: Apache-2.0
"""Properties of the profile over random small clusters."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_common.kube.profile import evaluate
from shoal_common.kube.snapshot import Snapshot
from shoal_common.pods import NodeRecord, PodRecord, ServiceRecord
from shoal_common.requests import ContainerResources, PodResources
from shoal_common.selectors import Taint

TAINTS = (Taint("soft", "", "PreferNoSchedule"), Taint("hard", "", "NoSchedule"))
cpu = st.integers(0, 4000)
memory = st.integers(0, 4 * 2**30)


@st.composite
def pods(draw: st.DrawFn, name: str, node: str = "") -> PodRecord:
    asked = {"cpu": Fraction(draw(cpu), 1000), "memory": Fraction(draw(memory))}
    kept = {key: asked[key] for key in draw(st.sets(st.sampled_from(sorted(asked))))}
    labels = {"app": draw(st.sampled_from(["web", "db"]))}
    return PodRecord(name, labels=labels, node_name=node, resources=PodResources((ContainerResources(kept),)))


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    nodes = [
        NodeRecord(
            f"n{index}",
            {
                "kubernetes.io/hostname": f"n{index}",
                "topology.kubernetes.io/zone": draw(st.sampled_from("ab")),
            },
            {"cpu": draw(cpu), "memory": draw(memory), "pods": draw(st.integers(1, 4))},
            tuple(draw(st.sets(st.sampled_from(TAINTS)))),
        )
        for index in range(draw(st.integers(1, 5)))
    ]
    bound = [draw(pods(f"b{i}", draw(st.sampled_from(nodes)).name)) for i in range(draw(st.integers(0, 6)))]
    return Snapshot(tuple(nodes), tuple(bound), (ServiceRecord("web", "default", {"app": "web"}),))


@given(snapshot=snapshots(), pod=pods("p"), data=st.data(), version=st.sampled_from(["1.35", "1.36"]))
@settings(deadline=None, derandomize=True, max_examples=150)
def test_the_order_of_nodes_and_pods_does_not_matter(
    snapshot: Snapshot, pod: PodRecord, data: st.DataObject, version: str
) -> None:
    nodes = tuple(data.draw(st.permutations(snapshot.nodes)))
    bound = tuple(data.draw(st.permutations(snapshot.pods)))
    shuffled = Snapshot(nodes, bound, snapshot.services)
    one, two = evaluate(snapshot, pod, version), evaluate(shuffled, pod, version)
    assert set(one.feasible) == set(two.feasible)
    assert (one.failures, one.codes, one.scores, one.total) == (
        two.failures,
        two.codes,
        two.scores,
        two.total,
    )


@given(snapshot=snapshots(), pod=pods("p"))
@settings(deadline=None, derandomize=True, max_examples=150)
def test_every_node_is_feasible_or_refused_and_scores_stay_in_bounds(
    snapshot: Snapshot, pod: PodRecord
) -> None:
    verdict = evaluate(snapshot, pod)
    weights = {"TaintToleration": 3, "PodTopologySpread": 2}
    assert {*verdict.feasible, *verdict.failures} == {node.name for node in snapshot.nodes}
    assert not set(verdict.feasible) & set(verdict.failures)
    for node, row in verdict.scores.items():
        assert all(0 <= value <= 100 * weights.get(plugin, 1) for plugin, value in row.items())
        assert verdict.total[node] == sum(row.values())
