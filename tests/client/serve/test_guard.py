# SPDX-License-Identifier: Apache-2.0
"""Which requests a policy may answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from shoal_client.policies.registry import Policies
from shoal_client.policies.spec import Mode
from shoal_client.serve.guard import Guard, one_node_only
from shoal_common.pods import PodRecord
from shoal_common.selectors import NodeSelectorTerm, Requirement

DIGEST = "a" * 64


@dataclass
class Caches:
    """How fresh the state is."""

    synced: bool = True
    age: float = 0.0

    def staleness_seconds(self, kind: str) -> float:
        return self.age if kind == "Pod" else 0.0


def policies(**spec: Any) -> Policies:
    found = Policies()
    found.set({"metadata": {"name": "p", "uid": "1", "generation": 1}, "spec": spec})
    found.mark_synced()
    return found


def pinned(*names: str, key: str = "metadata.name", operator: str = "In") -> PodRecord:
    term = NodeSelectorTerm((), (Requirement(key, operator, names),))
    return PodRecord("d", uid="d", required_nodes=(term,), owner_kind="DaemonSet")


POD = PodRecord("a", uid="a", owner_uid="owner", labels={"app": "web"})


@pytest.mark.parametrize(
    ("spec", "digest", "caches", "expected"),
    [
        ({"mode": "Off"}, DIGEST, Caches(), ("off", "off")),
        ({"mode": "Shadow"}, DIGEST, Caches(), (None, "shadow")),
        ({"mode": "Active"}, DIGEST, Caches(), (None, "active")),
        ({"mode": "Canary", "canaryPercent": 0}, DIGEST, Caches(), (None, "shadow")),
        ({"mode": "Canary", "canaryPercent": 100}, DIGEST, Caches(), (None, "canary")),
        ({"mode": "Active"}, None, Caches(), ("no_policy", "active")),
        ({"mode": "Active", "policyRef": {"digest": "b" * 64}}, DIGEST, Caches(), ("other_digest", "active")),
        ({"mode": "Active", "policyRef": {"digest": DIGEST}}, DIGEST, Caches(), (None, "active")),
        ({"mode": "Active"}, DIGEST, Caches(synced=False), ("not_synced", "active")),
        ({"mode": "Active"}, DIGEST, Caches(age=61), ("stale", "active")),
        ({"mode": "Active", "fallback": {"maxStalenessSeconds": 90}}, DIGEST, Caches(age=61),
         (None, "active")),
        (
            {"mode": "Active", "selector": {"podSelector": {"matchLabels": {"app": "db"}}}},
            DIGEST, Caches(), ("not_selected", "off"),
        ),
    ],
)  # fmt: skip
def test_a_plan_by_policy_artifact_and_caches(
    spec: dict[str, Any], digest: str | None, caches: Caches, expected: tuple[str | None, str]
) -> None:
    plan = Guard(policies(**spec), caches).plan(POD, {}, digest)
    assert (plan.reason, plan.recorded_mode) == expected


def test_the_policy_sets_deadline_and_scale() -> None:
    guard = Guard(policies(mode="Active", scoreScale=1000, fallback={"timeoutMs": 40}), Caches())
    plan = guard.plan(POD, {}, DIGEST)
    assert (plan.deadline_seconds, plan.scale) == (0.04, 1000)
    away = Guard(policies(selector={"schedulerNames": ["other"]}), Caches()).plan(POD, {}, DIGEST)
    assert (away.reason, away.deadline_seconds, away.scale) == ("not_selected", 0.1, 10)


def test_a_changed_mode_acts_on_the_next_plan() -> None:
    found = policies(mode="Active")
    guard = Guard(found, Caches())
    assert guard.plan(POD, {}, DIGEST).serves
    found.set({"metadata": {"name": "p", "uid": "1", "generation": 2}, "spec": {"mode": "Off"}})
    assert guard.plan(POD, {}, DIGEST).reason == "off"
    found.delete("p")
    assert guard.plan(POD, {}, DIGEST).recorded_mode == "shadow"
    assert Guard(Policies(Mode.ACTIVE, killed=True), Caches()).plan(POD, {}, DIGEST).reason == "off"


def test_case_50_daemonset_pods_have_one_candidate_and_no_choice() -> None:
    assert one_node_only(pinned("n1"))
    assert not any(map(one_node_only, (POD, pinned("n1", "n2"), pinned("n1", operator="NotIn"))))
    assert not one_node_only(PodRecord("e", required_nodes=()))
    plan = Guard(policies(mode="Active"), Caches()).plan(pinned("n1"), {}, DIGEST)
    assert plan.reason == "one_node_only"


def test_system_pods_and_shoals_own_are_never_masked() -> None:
    guard = Guard(policies(mode="Active"), Caches(), "shoal")
    masked = {n: guard.masks(PodRecord("p", namespace=n)) for n in ("default", "kube-system", "shoal")}
    assert masked == {"default": True, "kube-system": False, "shoal": False}
