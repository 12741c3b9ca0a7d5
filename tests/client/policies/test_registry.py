# SPDX-License-Identifier: Apache-2.0
"""Which policy holds for a pod, the canary's share, rollbacks and what a restart remembers of them."""

from __future__ import annotations

from typing import Any

import pytest

from shoal_client.policies.registry import Policies, in_canary
from shoal_client.policies.spec import Mode, SchedulingPolicySpec, read_spec
from shoal_common.errors import InputError
from shoal_common.pods import PodRecord
from shoal_common.reward import ObjectiveWeights


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def policy(
    name: str, generation: int = 1, created: str = "2026-01-01T00:00:00Z", **spec: Any
) -> dict[str, Any]:
    metadata = {"name": name, "uid": f"uid-{name}", "generation": generation, "creationTimestamp": created}
    return {"metadata": metadata, "spec": spec}


def synced(*objects: dict[str, Any], clock: Clock | None = None, **settings: Any) -> Policies:
    policies = Policies(clock=clock or Clock(), **settings)
    for obj in objects:
        policies.set(obj)
    policies.mark_synced()
    return policies


POD = PodRecord("web-1", "shop", uid="p1", labels={"app": "web"}, owner_uid="rs1")


def mode_of(policies: Policies, pod: PodRecord = POD, labels: dict[str, str] | None = None) -> Mode | None:
    applied = policies.for_pod(pod, labels or {})
    return applied.mode if applied else None


def test_without_any_policy_the_default_holds() -> None:
    assert mode_of(synced()) is Mode.SHADOW
    assert mode_of(synced(default_mode=Mode.ACTIVE)) is Mode.ACTIVE


def test_before_the_first_list_nothing_is_served_beyond_shadow() -> None:
    policies = Policies(Mode.ACTIVE)
    assert mode_of(policies) is Mode.SHADOW
    policies.mark_synced()
    assert mode_of(policies) is Mode.ACTIVE


def test_pods_that_no_policy_selects_are_left_alone() -> None:
    policies = synced(policy("db", mode="Active", selector={"podSelector": {"matchLabels": {"app": "db"}}}))
    assert mode_of(policies) is None


def test_selectors_of_pods_namespaces_and_schedulers_must_all_hold() -> None:
    selector = {
        "podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "api"]}]},
        "namespaceSelector": {"matchLabels": {"team": "a"}},
        "schedulerNames": ["default-scheduler"],
    }
    policies = synced(policy("a", mode="Active", selector=selector))
    assert mode_of(policies, labels={"team": "a"}) is Mode.ACTIVE
    assert mode_of(policies, labels={"team": "b"}) is None
    other = PodRecord("w", "shop", labels={"app": "web"}, scheduler_name="other")
    assert mode_of(policies, other, {"team": "a"}) is None


def test_precedence_is_priority_then_age_then_name() -> None:
    old, new = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"
    objects = [policy("b", created=new), policy("c", created=old), policy("a", created=new)]
    for order in (objects, objects[::-1]):
        policies = synced(*order)
        for winner in ("c", "a", "b"):
            applied = policies.for_pod(POD, {})
            assert applied is not None
            assert applied.name == winner
            policies.delete(winner)
    policies = synced(*objects, policy("z", created=new, priority=1))
    applied = policies.for_pod(POD, {})
    assert applied is not None
    assert applied.name == "z"


def test_an_invalid_policy_is_out_of_force_with_its_error() -> None:
    policies = synced(policy("a", mode="Canary"))
    assert mode_of(policies) is None
    error = "SchedulingPolicy a: spec: mode Canary needs canaryPercent, the share of owners to serve"
    assert policies.entries()["a"].error.startswith(error)
    policies.set(policy("a", 2, mode="Canary", canaryPercent=100))
    assert policies.entries()["a"].error == ""
    assert mode_of(policies) is Mode.CANARY


def test_the_kill_switch_switches_every_policy_off() -> None:
    assert mode_of(synced(policy("a", mode="Active"), killed=True)) is Mode.OFF
    assert mode_of(synced(killed=True, default_mode=Mode.ACTIVE)) is Mode.OFF
    assert mode_of(Policies(Mode.ACTIVE, killed=True)) is Mode.OFF


def test_a_canary_takes_its_share_of_owners_and_keeps_them_as_it_grows() -> None:
    owners = [PodRecord("p", uid=str(i), owner_uid=f"rs-{i}") for i in range(4000)]
    tenth = {p.owner_uid for p in owners if in_canary(p, 10)}
    third = {p.owner_uid for p in owners if in_canary(p, 33)}
    assert 320 < len(tenth) < 480
    assert tenth < third
    assert not any(in_canary(p, 0) for p in owners)
    assert all(in_canary(p, 100) for p in owners)
    twins = [PodRecord("a", uid="1", owner_uid="rs"), PodRecord("b", uid="2", owner_uid="rs")]
    assert len({in_canary(p, 50) for p in twins}) == 1


@pytest.mark.parametrize(
    ("mode", "percent", "served"),
    [
        ("Off", 100, False),
        ("Shadow", 100, False),
        ("Canary", 0, False),
        ("Canary", 100, True),
        ("Active", 0, True),
    ],
)
def test_who_is_served(mode: str, percent: int, served: bool) -> None:
    applied = synced(policy("a", mode=mode, canaryPercent=percent)).for_pod(POD, {})
    assert applied is not None
    assert applied.serves(POD) is served


def test_a_rollback_holds_for_its_cool_down_which_doubles() -> None:
    clock = Clock()
    policies = synced(policy("a", mode="Active", guardrails={"cooldownSeconds": 100}), clock=clock)
    for cooldown in (100, 200, 400):
        policies.roll_back("a", "PendingAge")
        assert mode_of(policies) is Mode.SHADOW
        clock.now += cooldown - 1
        applied = policies.for_pod(POD, {})
        assert applied is not None
        assert (applied.mode, applied.rolled_back) == (Mode.SHADOW, "PendingAge")
        clock.now += 1
        assert mode_of(policies) is Mode.ACTIVE


def test_a_new_spec_ends_a_rollback() -> None:
    policies = synced(policy("a", mode="Active"))
    policies.roll_back("a", "Evictions")
    policies.set(policy("a", 2, mode="Canary", canaryPercent=5))
    assert mode_of(policies) is Mode.CANARY


def test_a_rollback_in_the_status_is_taken_up_after_a_restart_but_only_once() -> None:
    clock = Clock()
    obj = policy("a", mode="Active", guardrails={"cooldownSeconds": 100})
    obj["status"] = {"rollback": {"generation": 1, "count": 2, "reason": "Evictions"}}
    policies = synced(obj, clock=clock)
    assert mode_of(policies) is Mode.SHADOW
    clock.now = 200
    assert mode_of(policies) is Mode.ACTIVE
    policies.set(obj)
    assert mode_of(policies) is Mode.ACTIVE
    obj["status"]["rollback"]["count"] = 3
    policies.set(obj)
    assert mode_of(policies) is Mode.SHADOW


def test_off_is_stronger_than_a_rollback() -> None:
    policies = synced(policy("a", mode="Off"))
    policies.roll_back("a", "Evictions")
    assert mode_of(policies) is Mode.OFF


def test_adapted_weights_hold_until_the_spec_changes() -> None:
    policies = synced(policy("a"))
    policies.adapt("a", ObjectiveWeights(0.1, 0.7, 0.1, 0.1))
    applied = policies.for_pod(POD, {})
    assert applied is not None
    assert applied.weights.qos == 0.7
    policies.set(policy("a", 2))
    applied = policies.for_pod(POD, {})
    assert applied is not None
    assert applied.weights == ObjectiveWeights()


def test_listeners_hear_of_every_change() -> None:
    heard: list[str] = []
    policies = Policies()
    policies.subscribe(lambda: heard.append("change"))
    policies.set(policy("a"))
    policies.roll_back("a", "x")
    policies.delete("a")
    policies.mark_synced()
    assert len(heard) == 4


def test_a_policy_may_name_the_artifact_it_admits() -> None:
    digest = "ab" * 32
    applied = synced(policy("a", policyRef={"digest": f"sha256:{digest}"})).for_pod(POD, {})
    assert applied is not None
    assert applied.admits(digest)
    assert not applied.admits("cd" * 32)
    anything = synced(policy("a")).for_pod(POD, {})
    assert anything is not None
    assert anything.admits("cd" * 32)


def test_weights_count_relative_to_their_sum() -> None:
    objectives = {"util": 1, "qos": 1, "energy": 0, "penalty": 0}
    spec = read_spec(SchedulingPolicySpec, "SchedulingPolicy", policy("a", objectives=objectives))
    assert spec.objectives.weights() == ObjectiveWeights(0.5, 0.5, 0.0, 0.0)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"mode": "active"}, "spec.mode"),
        ({"scoreScale": 0}, "spec.scoreScale"),
        ({"objectives": {"util": 0, "qos": 0, "energy": 0, "penalty": 0}}, "spec.objectives"),
        ({"actions": {"replicas": {"lowest": 5, "highest": 2}}}, "spec.actions.replicas"),
        ({"policyRef": {"digest": "latest"}}, "spec.policyRef.digest"),
        ({"privacy": {}}, "spec.privacy.epsilon"),
    ],
)
def test_a_wrong_field_is_named(spec: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as error:
        read_spec(SchedulingPolicySpec, "SchedulingPolicy", policy("a", **spec))
    assert error.value.field == field


def test_the_strictest_privacy_budget_holds() -> None:
    budget = synced(
        policy("a", privacy={"epsilon": 8, "delta": 1e-7}),
        policy("b", privacy={"epsilon": 2, "clipNorm": 1}),
        policy("c"),
    ).privacy()
    assert budget is not None
    assert (budget.epsilon, budget.delta, budget.clip_norm) == (2, 1e-7, 1)
    assert synced(policy("c")).privacy() is None
