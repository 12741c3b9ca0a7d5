# SPDX-License-Identifier: Apache-2.0
"""Rollback by itself: served pods that fare worse than shadow pods, on a clock that the test turns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shoal_client.policies.registry import Policies
from shoal_client.serve.guard import Plan
from shoal_client.serve.guardrails import Guardrails
from shoal_client.state.changes import PodChange
from shoal_common.pods import PodRecord, PodStatus
from shoal_common.tables import App


class World:
    """A policy `p`, its guardrails, a clock and the rollbacks that were asked for."""

    def __init__(self, **guardrails: Any) -> None:
        self.now = 0.0
        self.rollbacks: list[tuple[str, str]] = []
        self.policies = Policies()
        self.limits = {"minPods": 10, "windowSeconds": 1000, **guardrails}
        self.guardrails = Guardrails(
            self.policies,
            lambda _: {},
            lambda _: App(duration_seconds=10.0, sla=2.0),
            lambda name, reason: self.rollbacks.append((name, reason)),
            lambda: self.now,
        )
        self.mode("Shadow")
        self.policies.mark_synced()

    def mode(self, mode: str, **more: Any) -> None:
        spec = {"mode": mode, "guardrails": self.limits, **more}
        self.policies.set({"metadata": {"name": "p", "uid": "1", "generation": 1}, "spec": spec})

    def change(self, before: PodRecord | None, after: PodRecord | None) -> None:
        self.guardrails.pod_changed(PodChange(before, after, self.now))

    def pods(self, count: int, prefix: str, waits: float = 0.1, **fate: Any) -> None:
        """So many pods come, wait and are bound, then meet their fate."""
        for i in range(count):
            new = PodRecord(f"{prefix}{i}", uid=f"{prefix}{i}", phase="Pending")
            self.change(None, new)
            self.now += waits
            bound = replace(new, node_name="n1", phase="Running")
            failed = replace(new, status=PodStatus(unschedulable="no", unschedulable_at=self.now))
            if fate.get("fails"):
                self.change(new, failed)
            self.change(new, bound)
            if fate.get("evicted"):
                self.change(bound, replace(bound, status=PodStatus(disruption="PreemptionByScheduler")))
            if "runs" in fate:
                self.now += fate["runs"]
                self.change(bound, replace(bound, phase="Succeeded"))


BAD = {
    "pending_seconds": {"waits": 3.0},
    "failed_scheduling": {"fails": True},
    "evictions": {"evicted": True},
}


@pytest.mark.parametrize("guardrail", [*BAD, "sla_violations"])
def test_a_figure_far_above_the_shadow_baseline_rolls_back(guardrail: str) -> None:
    world = World()
    world.pods(20, "s", runs=5.0)
    world.mode("Active")
    world.now += 1000
    world.pods(20, "a", **BAD.get(guardrail, {"runs": 30.0}))
    world.guardrails.check()
    ((name, reason),) = world.rollbacks
    assert name == "p"
    assert reason.startswith(guardrail)
    world.guardrails.check()
    assert len(world.rollbacks) == 1


def test_as_good_as_shadow_stays_and_so_does_what_cannot_be_judged() -> None:
    world = World()
    world.pods(20, "s", waits=2.0, runs=5.0)
    world.mode("Active")
    world.pods(20, "a", waits=2.5, runs=5.0)
    world.guardrails.check()
    few = World()
    few.pods(20, "s")
    few.mode("Active")
    few.pods(9, "a", waits=50.0)
    few.guardrails.check()
    no_baseline = World()
    no_baseline.mode("Active")
    no_baseline.pods(20, "a", waits=50.0)
    no_baseline.guardrails.check()
    off = World(enabled=False)
    off.pods(20, "s")
    off.mode("Active")
    off.pods(20, "a", waits=50.0)
    off.guardrails.check()
    assert not world.rollbacks + few.rollbacks + no_baseline.rollbacks + off.rollbacks


def test_pods_that_are_never_placed_count_with_their_age() -> None:
    world = World()
    world.pods(20, "s")
    world.mode("Active")
    for i in range(12):
        world.change(None, PodRecord(f"w{i}", uid=f"w{i}", phase="Pending"))
    world.guardrails.check()
    assert not world.rollbacks
    world.now += 60
    world.guardrails.check()
    assert world.rollbacks[0][1].startswith("pending_seconds is 60")


def test_a_canarys_shadow_share_is_its_baseline() -> None:
    world = World()
    world.mode("Canary", canaryPercent=50)
    for i in range(60):
        pod = PodRecord(f"c{i}", uid=f"c{i}", owner_uid=f"o{i}", phase="Pending")
        applied = world.policies.for_pod(pod, {})
        assert applied is not None
        world.change(None, pod)
        begin, world.now = world.now, world.now + (5.0 if applied.serves(pod) else 0.1)
        world.change(pod, replace(pod, node_name="n1"))
        world.now = begin + 0.2
    world.guardrails.check()
    assert len(world.rollbacks) == 1


def test_scores_that_are_no_numbers_roll_back_at_once() -> None:
    world = World()
    world.mode("Active")
    applied = world.policies.for_pod(PodRecord("a", uid="a"), {})
    world.guardrails.doubtful(Plan(applied, None, serves=False), "not_finite")
    assert not world.rollbacks
    world.guardrails.doubtful(Plan(applied, None, serves=True), "not_finite")
    assert world.rollbacks == [("p", "the policy's scores are not finite")]


def test_what_the_scheduler_took_is_compared_with_the_choice() -> None:
    from shoal_client.metrics import CHOICES_BOUND

    def counted(agreed: str) -> float:
        return CHOICES_BOUND.labels("shadow", agreed)._value.get()

    world = World()
    before = counted("yes"), counted("no")
    applied = world.policies.for_pod(PodRecord("a"), {})
    for uid, node in (("x", "n1"), ("y", "n2")):
        pod = PodRecord(uid, uid=uid)
        world.change(None, pod)
        world.guardrails.decided(pod, Plan(applied, None), [node])
        world.change(pod, replace(pod, node_name="n1"))
    assert (counted("yes") - before[0], counted("no") - before[1]) == (1, 1)
