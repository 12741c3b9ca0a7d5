# SPDX-License-Identifier: Apache-2.0
"""Every rule by which an attempt is closed, with its numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shoal_client.experience.attempts import Attempts
from shoal_client.experience.settings import Settings
from shoal_client.experience.store import Choice, ExperienceStore
from shoal_common.pods import PodStatus


def _outcomes(rows):
    return [(row.decision.source, row.result and row.result.outcome) for row in rows]


def test_a_decision_is_credited_until_its_horizon_and_its_outcome_brought_up_at_the_end(world, new_pod):
    pending = new_pod()
    world.change(None, pending)
    world.decided(pending, chosen=2)
    bound = world.bind(pending, "node-2", started_at=10.0)
    world.at(299)
    assert world.rows()[0].result is None
    world.at(2)
    (row,) = world.rows()
    assert (row.result.outcome, row.final, row.result.learnable) == ("running", False, True)
    assert (row.result.action, row.result.propensity) == (2, pytest.approx(0.25))
    assert row.result.seconds == pytest.approx(300)
    util, qos, energy, penalty = reward = row.result.reward
    assert util < 0  # an empty node was opened for two cores
    assert energy < 0
    assert penalty == pytest.approx(0.25 * energy)
    assert qos == 0
    world.change(bound, replace(bound, phase="Succeeded", status=PodStatus(started_at=10.0, ended_at=900.0)))
    (row,) = world.rows()
    assert (row.result.outcome, row.final, row.result.ended_at) == ("succeeded", True, 900.0)
    assert row.result.reward == reward


def test_the_reward_is_that_of_the_formula(world, new_pod):
    """One two-core pod on an empty 16-core node of four: every number by hand."""
    pending = new_pod()
    world.change(None, pending)
    world.decided(pending, chosen=0)
    world.bind(pending, "node-0")
    world.at(301)
    (row,) = world.rows()
    scale = 4 * 4 / 1  # 4 N, and the normalised discount integrates to 1
    x = 2 / 16
    power = 100 + 200 * (2 * x - x**1.4)
    span = 4 * (300 - 10)
    assert row.result.watts == pytest.approx(power)
    assert row.result.reward[0] == pytest.approx(-scale * 14 / 64, abs=0.02)
    assert row.result.reward[2] == pytest.approx(-scale * (power - 10) / span, rel=1e-6)


def test_an_end_within_the_horizon_closes_the_window(world, new_pod):
    pending = new_pod()
    world.change(None, pending)
    world.decided(pending, chosen=1)
    bound = world.bind(pending, "node-1")
    world.at(50)
    world.change(bound, replace(bound, phase="Succeeded"))
    world.at(500)
    (row,) = world.rows()
    assert (row.result.outcome, row.final, row.result.seconds) == ("succeeded", True, pytest.approx(50))


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (PodStatus(reason="Evicted"), "evicted"),
        (PodStatus(disruption="EvictionByEvictionAPI"), "evicted"),
        (PodStatus(disruption="PreemptionByScheduler"), "preempted"),
        (PodStatus(oom_killed=True), "oom"),
        (PodStatus(), "failed"),
    ],
)
def test_what_costs_costs_as_much_as_a_minute_of_waiting(world, new_pod, status, outcome):
    rewards = []
    for uid, end in (("a", PodStatus()), ("b", status)):
        pending = new_pod(uid)
        world.change(None, pending)
        world.decided(pending, chosen=1)
        bound = world.bind(pending, "node-1")
        world.at(50)
        world.change(bound, replace(bound, phase="Failed", status=end))
        rewards.append(world.rows()[-1])
    assert rewards[1].result.outcome == outcome
    n_ref = 64 / 2.5
    norm = 200 * (1 - np.exp(-1.5))
    cost = 4 * 4 / norm * 4 * 60 / n_ref if outcome != "failed" else 0.0
    difference = rewards[0].result.reward[3] - rewards[1].result.reward[3]
    assert difference == pytest.approx(min(cost, 6 + rewards[0].result.reward[3]))


def test_case_22_a_kubelets_refusal_is_negative_once_and_no_load(world, new_pod):
    """k/k#72043, #60469: two schedulers race, the kubelet says OutOfcpu."""
    for uid, node in (("other", "node-3"), ("ours", "node-3")):
        pending = new_pod(uid, cpu="10", scheduler_name="ours" if uid == "ours" else "their-scheduler")
        world.change(None, pending)
        if uid == "ours":
            world.decided(pending, chosen=3)
        bound = world.bind(pending, node)
    refused = replace(bound, phase="Failed", status=PodStatus(reason="OutOfcpu"))
    world.change(bound, refused)
    world.change(refused, refused)
    world.change(refused, None)
    world.at(400)
    watched, ours = world.rows()
    assert (watched.decision.source, watched.decision.scheduler) == ("watched", "their-scheduler")
    assert (watched.result.outcome, watched.result.learnable) == ("running", True)
    assert (ours.result.outcome, ours.result.reason, ours.final) == ("rejected", "OutOfcpu", True)
    assert ours.result.reward[:3] == (0.0, 0.0, 0.0)
    assert ours.result.reward[3] < 0
    # the refused pod is no load of the other's window: two cores or ten make a difference there
    x = 10 / 16
    assert watched.result.watts == pytest.approx(100 + 200 * (2 * x - x**1.4))


def test_case_67_every_attempt_is_kept_with_its_reason(world, new_pod):
    """kube-scheduler-simulator#214: only the last attempt was recorded."""
    sentence = "0/4 nodes are available: 4 Insufficient cpu."
    pending = new_pod()
    world.change(None, pending)
    failed = replace(pending, status=PodStatus(unschedulable=sentence))
    world.change(pending, failed)  # kube-scheduler had no candidate: we were not asked
    world.attempts.refused(failed, "deadline", "extender", "active", "digest", world.now)
    world.decided(failed, chosen=0)  # its bind fails
    again = replace(failed, status=PodStatus(unschedulable="binding rejected"))
    world.change(failed, again)
    world.decided(again, chosen=1)
    world.bind(again, "node-1")
    world.at(301)
    rows = world.rows()
    assert [row.decision.attempt for row in rows] == [1, 2, 3, 4]
    assert [(row.result.outcome, row.result.reason) for row in rows] == [
        ("refused", sentence),
        ("refused", "deadline"),
        ("refused", "binding rejected"),
        ("running", ""),
    ]
    assert [row.result.learnable for row in rows] == [False, False, False, True]


def test_a_bind_nobody_asked_about_is_recorded_with_what_could_be_chosen(world, new_pod):
    pending = new_pod(cpu="4", scheduler_name="their-scheduler")
    world.change(None, pending)
    expected = world.seen(pending)
    world.bind(pending, "node-2")
    world.at(301)
    (row,) = world.rows()
    assert (row.decision.source, row.decision.mode, row.decision.policy) == ("watched", "off", "")
    assert (row.result.action, row.result.learnable) == (2, True)
    assert np.isnan(row.result.propensity)
    seen = row.decision.seen
    np.testing.assert_array_equal(seen.mask, expected.mask)
    np.testing.assert_array_equal(
        seen.node, expected.node.astype(np.float16)
    )  # the pod itself is not on its node
    np.testing.assert_array_equal(seen.pair, expected.pair.astype(np.float16))
    np.testing.assert_array_equal(seen.ctx[:7], expected.ctx[:7].astype(np.float16))


def test_another_node_than_the_chosen_one_is_what_was_done_and_its_propensity_is_unknown(world, new_pod):
    pending = new_pod()
    world.change(None, pending)
    world.decided(pending, chosen=3)
    world.bind(pending, "node-1")
    world.at(301)
    (row,) = world.rows()
    assert (row.decision.chosen, row.result.action) == (3, 1)
    assert np.isnan(row.result.propensity)
    assert row.result.learnable


def test_a_daemonsets_pod_is_no_choice(world, new_pod):
    pending = new_pod(owner_kind="DaemonSet")
    world.change(None, pending)
    world.decided(pending, chosen=0)
    world.bind(pending, "node-0")
    world.at(301)
    (row,) = world.rows()
    assert (row.result.outcome, row.result.learnable) == ("running", False)
    assert row.result.reward is not None


def test_an_infeasible_or_unknown_node_is_nothing_to_learn_from(world, new_pod):
    for uid, node in (("a", "node-9"), ("b", "node-0")):
        pending = new_pod(uid, cpu="17" if uid == "b" else "1")
        world.change(None, pending)
        world.decided(pending, chosen=-1)
        world.bind(pending, node)
    world.at(301)
    assert [(row.result.learnable, row.result.action) for row in world.rows()] == [(False, -1), (False, 0)]


def test_a_pod_that_goes_before_it_is_placed(world, new_pod):
    pending = new_pod()
    world.change(None, pending)
    world.decided(pending, chosen=0)
    world.change(pending, None)
    assert _outcomes(world.rows()) == [("extender", "gone")]


def test_a_pod_that_nothing_is_heard_of_is_lost_and_a_late_bind_is_watched(world, new_pod):
    pending = new_pod()
    world.change(None, pending)
    world.decided(pending, chosen=0)
    world.at(3_599)
    assert _outcomes(world.rows()) == [("extender", None)]
    world.at(2)
    assert _outcomes(world.rows()) == [("extender", "lost")]
    world.bind(pending, "node-0")
    world.at(301)
    assert _outcomes(world.rows()) == [("extender", "lost"), ("watched", "running")]


def test_a_decision_told_after_the_bind_was_seen_takes_nothing_from_it(world, new_pod):
    pending = new_pod()
    world.change(None, pending)
    bound = world.bind(pending, "node-0")
    world.decided(pending, chosen=0)
    world.change(bound, None)
    assert _outcomes(world.rows()) == [("watched", "deleted"), ("extender", "superseded")]


def test_a_pod_first_seen_on_a_node_is_no_decision_but_load(world, new_pod):
    world.change(None, new_pod("old", cpu="8", node_name="node-0", phase="Running"))
    pending = new_pod()
    world.change(None, pending)
    world.decided(pending, chosen=0)
    world.bind(pending, "node-0")
    world.at(301)
    (row,) = world.rows()
    x = 10 / 16
    assert row.result.watts == pytest.approx(100 + 200 * (2 * x - x**1.4))
    assert row.result.reward[0] > 0  # useful work on a node that was on


def test_a_container_killed_for_memory_costs_once_while_the_pod_runs_on(world, new_pod):
    pending = new_pod()
    world.change(None, pending)
    world.decided(pending, chosen=0)
    bound = world.bind(pending, "node-0")
    for restarts in (1, 2):
        world.at(10)
        world.change(bound, replace(bound, status=PodStatus(oom_killed=True, restarts=restarts)))
    world.at(301)
    (row,) = world.rows()
    assert (row.result.outcome, row.final) == ("oom", False)
    assert row.result.reward[3] < -0.5
    world.change(bound, None)
    (after,) = world.rows()
    assert (after.result.outcome, after.final) == ("oom", True)
    assert after.result.slowdown == row.result.slowdown >= 1
    assert after.result.sla_met
    assert after.result.reward == row.result.reward


def test_what_an_earlier_process_left_is_followed_on(tmp_path, world, new_pod):
    waiting, running, gone = new_pod("w"), new_pod("r"), new_pod("g")
    for record in (waiting, running, gone):
        world.change(None, record)
        world.decided(record, chosen=0)
    bound = world.bind(running, "node-0")
    world.bind(gone, "node-1")
    assert world.store.flush(10)
    directory = world.store.path.parent
    world.store.stop()
    with ExperienceStore(directory) as store:
        world.store, world.attempts = (
            store,
            Attempts(store, world.live, world.attempts._apps, Settings(), 5_000.0),
        )
        world.now = 5_000.0
        world.change(None, waiting)
        world.change(None, bound)
        world.bind(waiting, "node-0")  # seen as it happens, with the candidates that the disk holds
        world.change(bound, replace(bound, phase="Succeeded", status=PodStatus(ended_at=7.0)))
        world.at(301)
        world.at(3_600)
        rows = {row.decision.uid: row for row in world.rows()}
        assert (rows["w"].result.outcome, rows["w"].result.action) == ("running", 0)
        assert rows["w"].result.learnable
        assert rows["w"].result.propensity == pytest.approx(0.25)
        assert (rows["r"].result.outcome, rows["r"].result.reward, rows["r"].final) == (
            "succeeded",
            None,
            True,
        )
        assert (rows["g"].result.outcome, rows["g"].result.learnable, rows["g"].final) == (
            "lost",
            False,
            True,
        )


def test_ends_that_did_not_reach_the_disk_are_made_up_for(world, new_pod):
    """The process was killed between two writes: an attempt stands beside a bound or a later one."""
    for uid, first, second in (("a", "bound", "open"), ("b", "open", "bound"), ("c", "open", "open")):
        for number, state in enumerate((first, second), 1):
            pending = new_pod(uid)
            record = world.attempts._record(pending, _Followed(number - 1), "extender", "active", "digest")
            world.store.decided(replace(record, seen=world.seen(pending), chosen=0))
            if state == "bound":
                world.store.bound(record.id, "node-0", 1.0, Choice(0))
    assert world.store.flush(10)
    directory, apps = world.store.path.parent, world.attempts._apps
    world.store.stop()
    with ExperienceStore(directory) as store:
        world.store, world.attempts = store, Attempts(store, world.live, apps, Settings(), 0.0)
        world.now = 0.0
        for uid in "abc":
            on_node = {} if uid == "c" else {"node_name": "node-0", "phase": "Running"}
            world.change(None, new_pod(uid, **on_node))
            world.change(world.live.pods[uid], None)
        rows = [(row.decision.uid, row.result.outcome, row.final) for row in world.rows()]
    assert rows == [
        ("a", "deleted", True), ("a", "superseded", True), ("b", "superseded", True), ("b", "deleted", True),
        ("c", "superseded", True), ("c", "gone", True),
    ]  # fmt: skip


class _Followed:
    def __init__(self, attempts):
        self.attempts = attempts


def test_a_pod_that_waits_long_keeps_no_candidates_of_others_in_memory(world, make_world, new_pod):
    world = make_world(world.store, nodes=80)
    world.decided(new_pod("waits"), chosen=0)
    for i in range(50):
        world.decided(new_pod(f"p{i}"), chosen=1)
        world.bind(new_pod(f"p{i}"), "node-1")
    assert len(world.attempts._full) == 1
    assert world.attempts._full_bytes == world.attempts._pods["waits"].open.full_bytes > 0
    for _ in range(50):
        world.decided(new_pod("again"), chosen=2)
    assert len(world.attempts._full) == 2
