# SPDX-License-Identifier: Apache-2.0
"""The other plugins by hand, in what the golden cases do not reach."""

from __future__ import annotations

import pytest

from shoal_common.kube import inter_pod_affinity, pod_topology_spread
from shoal_common.kube.image_locality import normalised_name
from shoal_common.kube.image_locality import score_nodes as image_scores
from shoal_common.kube.plugin import divide, normalise
from shoal_common.kube.profile import default_profile, evaluate
from shoal_common.kube.snapshot import Snapshot
from shoal_common.pods import (
    HOSTNAME,
    HostPort,
    NamespaceRecord,
    NodeImage,
    NodeRecord,
    PodRecord,
    PodTerm,
    ServiceRecord,
    SpreadConstraint,
)
from shoal_common.selectors import LabelSelector, NodeSelectorTerm, Requirement, Taint, Toleration

MIB = 2**20
ZONE = pod_topology_spread.ZONE
ROOM = {"cpu": 4000, "memory": 2**34, "pods": 10}
WEB = LabelSelector((Requirement("app", "In", ("web",)),))
OWN = frozenset(("default",))


def node(name: str, **more: object) -> NodeRecord:
    labels = {HOSTNAME: name, **({ZONE: str(more.pop("zone"))} if "zone" in more else {})}
    return NodeRecord(name, labels, ROOM, **more)  # type: ignore[arg-type]


def web(name: str, on: str = "", **more: object) -> PodRecord:
    return PodRecord(name, labels={"app": "web"}, node_name=on, **more)  # type: ignore[arg-type]


def test_go_division_truncates_toward_zero() -> None:
    assert (divide(7, 2), divide(-7, 2), divide(-1, 2)) == (3, -3, 0)


def test_normalisation() -> None:
    assert normalise([0, 5, 10]) == [0, 50, 100]
    assert normalise([0, 0]) == [0, 0]
    assert normalise([0, 1, 3], reverse=True) == [100, 67, 0]
    assert normalise([0, 0], reverse=True) == [100, 100]


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1\.35, 1\.36"):
        default_profile("1.30")


def test_a_cordoned_node_takes_who_tolerates_the_cordon() -> None:
    snapshot = Snapshot((node("n", unschedulable=True),))
    assert evaluate(snapshot, PodRecord("p")).failures == {"n": ("node(s) were unschedulable",)}
    tolerant = PodRecord("p", tolerations=(Toleration("node.kubernetes.io/unschedulable", "Exists"),))
    assert evaluate(snapshot, tolerant).feasible == ("n",)


def test_no_execute_taints_refuse_and_the_first_failing_filter_is_reported() -> None:
    snapshot = Snapshot((node("n", taints=(Taint("k", "", "NoExecute"),)),))
    wrong_node = PodRecord("p", node_selector={"disk": "ssd"})
    assert evaluate(snapshot, wrong_node).failures == {"n": ("node(s) had untolerated taint(s)",)}


def test_required_terms_without_any_term_match_nothing() -> None:
    snapshot = Snapshot((node("n"),))
    assert evaluate(snapshot, PodRecord("p", required_nodes=())).feasible == ()
    by_name = NodeSelectorTerm(fields=(Requirement("metadata.name", "In", ("n",)),))
    assert evaluate(snapshot, PodRecord("p", required_nodes=(by_name,))).feasible == ("n",)


def test_a_named_node_is_the_only_one() -> None:
    verdict = evaluate(Snapshot((node("a"), node("b"))), PodRecord("p", node_name="b"))
    assert verdict.feasible == ("b",)
    assert verdict.failures == {"a": ("node(s) didn't match the requested node name",)}


@pytest.mark.parametrize(
    ("other", "conflict"),
    [
        (HostPort("0.0.0.0", "TCP", 80), True),
        (HostPort("10.0.0.1", "TCP", 80), True),
        (HostPort("10.0.0.2", "TCP", 80), False),
        (HostPort("10.0.0.1", "UDP", 80), False),
        (HostPort("10.0.0.1", "TCP", 81), False),
    ],
)
def test_host_ports_conflict_on_overlapping_addresses(other: HostPort, conflict: bool) -> None:
    bound = PodRecord("b", node_name="n", host_ports=(HostPort("10.0.0.1", "TCP", 80),))
    verdict = evaluate(Snapshot((node("n"),), (bound,)), PodRecord("p", host_ports=(other,)))
    assert (verdict.feasible == ()) is conflict


def test_image_scores() -> None:
    assert normalised_name("reg.io:5000/a") == "reg.io:5000/a:latest"
    assert normalised_name("a@sha256:1") == "a@sha256:1"
    image = NodeImage(("a:latest",), 1046 * MIB)
    snapshot = Snapshot((node("has", images=(image,)), node("not")))
    # 1046 MiB on one of two nodes counts 523 MiB: 100 * (523 - 23) / (1000 - 23)
    assert image_scores(snapshot, PodRecord("p", images=("a",)), snapshot.infos) == [51, 0]
    # twice 523 MiB for two containers: 100 * (1046 - 23) / (2000 - 23)
    assert image_scores(snapshot, PodRecord("p", images=("a", "a:latest")), snapshot.infos) == [51, 0]
    # a volume's image adds bytes, not a container: 100 * (1000 - 23) / (1000 - 23), clamped
    both = PodRecord("p", images=("a",), volume_images=("a",))
    assert image_scores(snapshot, both, snapshot.infos) == [100, 0]


def test_finished_pods_hold_nothing_and_terminating_ones_do() -> None:
    tight = NodeRecord("n", {HOSTNAME: "n"}, {**ROOM, "pods": 1})
    done = PodRecord("b", node_name="n", phase="Succeeded")
    leaving = PodRecord("b", node_name="n", phase="Running", terminating=True)
    assert evaluate(Snapshot((tight,), (done,)), PodRecord("p")).feasible == ("n",)
    assert evaluate(Snapshot((tight,), (leaving,)), PodRecord("p")).feasible == ()


def hard_spread(**more: object) -> PodRecord:
    constraint = SpreadConstraint(ZONE, 1, "DoNotSchedule", WEB, **more)  # type: ignore[arg-type]
    return web("p", spread=(constraint,))


def test_hard_spread_keeps_the_skew_and_wants_the_label() -> None:
    nodes = (node("a", zone="1"), node("b", zone="2"), node("c"))
    verdict = evaluate(Snapshot(nodes, (web("x", "a"),)), hard_spread())
    assert verdict.feasible == ("b",)
    assert verdict.failures["a"] == ("node(s) didn't match pod topology spread constraints",)
    assert verdict.codes == {"a": "Unschedulable", "c": "UnschedulableAndUnresolvable"}


def test_too_few_domains_count_as_an_empty_one() -> None:
    snapshot = Snapshot((node("a", zone="1"),), (web("x", "a"),))
    assert evaluate(snapshot, hard_spread()).feasible == ("a",)
    assert evaluate(snapshot, hard_spread(min_domains=2)).feasible == ()


def test_terminating_pods_and_other_namespaces_do_not_count_for_spread() -> None:
    nodes = (node("a", zone="1"), node("b", zone="2"))
    ignored = (web("x", "a", terminating=True), web("y", "a", namespace="other"))
    assert evaluate(Snapshot(nodes, ignored), hard_spread()).feasible == ("a", "b")


def test_tainted_domains_count_unless_the_policy_honours_taints() -> None:
    nodes = (node("a", zone="1"), node("b", zone="2", taints=(Taint("k", "", "NoSchedule"),)))
    snapshot = Snapshot(nodes, (web("x", "a"),))
    assert evaluate(snapshot, hard_spread()).feasible == ()
    assert evaluate(snapshot, hard_spread(honor_taints=True)).feasible == ("a",)


def test_system_default_spread_follows_services() -> None:
    nodes = (node("a", zone="1"), node("b", zone="2"))
    service = ServiceRecord("web", "default", {"app": "web"})
    snapshot = Snapshot(nodes, (web("x", "a"),), (service,))
    # hostname: ln(4) * 1 + 2; zone: ln(4) * 1 + 4: 8.77 -> 9 on a, 6 on b; 100 * (9 + 6 - raw) / 9
    assert pod_topology_spread.score_nodes(snapshot, web("p"), snapshot.infos) == [66, 100]
    assert pod_topology_spread.score_nodes(snapshot, PodRecord("p"), snapshot.infos) is None


def term(weight: int = 0, **more: object) -> PodTerm:
    given: dict[str, object] = {"namespaces": OWN, "namespace_selector": None, **more}
    return PodTerm(HOSTNAME, WEB, weight=weight, **given)  # type: ignore[arg-type]


def test_affinity_lets_the_first_of_a_kind_start() -> None:
    snapshot = Snapshot((node("a"), node("b")))
    assert evaluate(snapshot, web("p", affinity=(term(),))).feasible == ("a", "b")
    assert evaluate(snapshot, PodRecord("p", affinity=(term(),))).feasible == ()
    joined = Snapshot(snapshot.nodes, (web("x", "b"),))
    assert evaluate(joined, web("p", affinity=(term(),))).feasible == ("b",)


def test_anti_affinity_works_both_ways() -> None:
    nodes = (node("a"), node("b"))
    mine = evaluate(Snapshot(nodes, (web("x", "a"),)), PodRecord("p", anti_affinity=(term(),)))
    theirs = evaluate(Snapshot(nodes, (PodRecord("x", node_name="a", anti_affinity=(term(),)),)), web("p"))
    assert mine.failures == {"a": ("node(s) didn't match pod anti-affinity rules",)}
    assert theirs.failures == {"a": ("node(s) didn't satisfy existing pods anti-affinity rules",)}


def test_namespace_selectors_reach_other_namespaces() -> None:
    nodes, other = (node("a"), node("b")), web("x", "a", namespace="team-b")
    namespaces = (NamespaceRecord("team-b", {"team": "b"}),)
    chosen = LabelSelector((Requirement("team", "In", ("b",)),))
    near = PodRecord("p", affinity=(term(namespaces=frozenset(), namespace_selector=chosen),))
    assert evaluate(Snapshot(nodes, (other,), (), namespaces), near).feasible == ("a",)
    assert evaluate(Snapshot(nodes, (other,)), near).feasible == ()


def test_a_pods_own_namespace_selectors_know_only_namespaces_that_are_there() -> None:
    # DoesNotExist matches the empty labels of a namespace that nobody listed; the scheduler lists namespaces
    # for the incoming pod's terms, so such a namespace has no name to match by.
    selector = LabelSelector((Requirement("team", "DoesNotExist"),))
    term = PodTerm(ZONE, WEB, frozenset(), selector)
    everywhere = PodTerm(ZONE, WEB, frozenset(), LabelSelector())
    nodes, bound = (node("a", zone="z"),), (web("w", "a", namespace="ghost"),)
    pod = PodRecord("p", anti_affinity=(term,))
    assert evaluate(Snapshot(nodes, bound), pod).feasible == ("a",)
    listed = Snapshot(nodes, bound, namespaces=(NamespaceRecord("ghost", {}),))
    assert evaluate(listed, pod).feasible == ()
    assert evaluate(Snapshot(nodes, bound), PodRecord("p", anti_affinity=(everywhere,))).feasible == ()


def test_preferred_affinity_scores() -> None:
    nodes = (node("a"), node("b"), node("c"))
    snapshot = Snapshot(nodes, (web("x", "a"), web("y", "b", preferred_anti_affinity=(term(30),))))
    wants = web("p", preferred_affinity=(term(10),))
    # a: +10; b: +10 - 30; c: 0
    assert inter_pod_affinity.score_nodes(snapshot, wants, snapshot.infos) == [100, 0, 66]
    even = Snapshot(nodes[:1], (web("x", "a"),))
    assert inter_pod_affinity.score_nodes(even, wants, even.infos) == [0]
    assert inter_pod_affinity.score_nodes(even, web("p"), even.infos) is None


def test_required_affinity_of_existing_pods_attracts() -> None:
    snapshot = Snapshot((node("a"), node("b")), (PodRecord("x", node_name="a", affinity=(term(),)),))
    assert inter_pod_affinity.score_nodes(snapshot, web("p"), snapshot.infos) == [100, 0]
