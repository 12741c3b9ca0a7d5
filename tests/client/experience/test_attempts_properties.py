# SPDX-License-Identifier: Apache-2.0
"""Whatever the order of events (twice, late, missing, swapped), every attempt closes exactly once."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_client.collect.measured import Measured
from shoal_client.experience.records import COSTLY, OUTCOMES
from shoal_client.experience.store import ExperienceStore
from shoal_client.metrics import REGISTRY
from shoal_common.pods import PodStatus

UIDS = ("a", "b", "c")
KINDS = (
    "decided", "refused", "pending", "unschedulable", "bound", "killed", "succeeded", "evicted", "rejected",
    "deleted", "wait", "measured",
)  # fmt: skip
LIVES = (
    ("pending", "decided", "bound", "wait", "measured", "succeeded", "deleted"),
    ("pending", "unschedulable", "refused", "decided", "decided", "bound", "killed", "wait", "evicted"),
    ("pending", "bound", "measured", "wait", "deleted"),
    ("decided", "pending", "bound", "rejected", "deleted"),
    ("bound", "wait", "succeeded"),
    ("pending", "decided", "wait", "deleted"),
)


@st.composite
def _events(draw):
    """Lives of three pods, interleaved, then disturbed: twice, missing, swapped or odd events."""
    lives = [[(kind, uid) for kind in draw(st.sampled_from(LIVES))] for uid in UIDS]
    told = []
    while any(lives):
        told.append(draw(st.sampled_from([life for life in lives if life])).pop(0))
    for disturb in draw(st.lists(st.sampled_from(["twice", "missing", "swapped", "odd"]), max_size=6)):
        i, j = draw(st.integers(0, len(told) - 1)), draw(st.integers(0, len(told) - 1))
        if disturb == "twice":
            told.insert(j, told[i])
        elif disturb == "missing" and len(told) > 1:
            told.pop(i)
        elif disturb == "swapped":
            told[i], told[j] = told[j], told[i]
        else:
            told.insert(i, (draw(st.sampled_from(KINDS)), draw(st.sampled_from(UIDS))))
    rest = st.tuples(
        st.integers(0, 3),  # a node
        st.sampled_from([True, True, True, False]),  # whether the event knows the state before it
        st.sampled_from([1.0, 60.0, 299.0, 301.0, 3_601.0]),
    )
    return [(*event, *draw(rest)) for event in told]


EVENTS = _events()
STATES = {
    "pending": {},
    "unschedulable": {"status": PodStatus(unschedulable="no room")},
    "bound": {"phase": "Running"},
    "killed": {"phase": "Running", "status": PodStatus(oom_killed=True, restarts=1)},
    "succeeded": {"phase": "Succeeded", "status": PodStatus(started_at=1.0, ended_at=9.0)},
    "evicted": {"phase": "Failed", "status": PodStatus(reason="Evicted")},
    "rejected": {"phase": "Failed", "status": PodStatus(reason="OutOfcpu")},
}


def _closed() -> float:
    return sum(
        REGISTRY.get_sample_value("shoal_experience_outcomes_total", {"outcome": o}) or 0 for o in OUTCOMES
    )


class Script:
    """Plays events on a world; `before` is the last state of the pod or, where it is not known, None."""

    def __init__(self, world, new_pod) -> None:
        self.world, self.new_pod, self.last = world, new_pod, {}

    def play(self, kind, uid, node, knows, seconds) -> None:
        world, pod = self.world, self.new_pod(uid)
        before = self.last.get(uid) if knows else None
        if kind == "decided":
            world.decided(pod, chosen=node, known=knows)
        elif kind == "refused":
            world.attempts.refused(pod, "deadline", "extender", "active", "digest", world.now)
        elif kind == "wait":
            world.at(seconds)
        elif kind == "measured":
            world.attempts.measured(
                {f"node-{node}": Measured(cpu_millicores=seconds, watts=seconds)}, world.now
            )
        elif kind == "deleted":
            world.attempts.changed(before or pod, None, world.now)
            self.last.pop(uid, None)
        else:
            on_node = {} if kind in ("pending", "unschedulable") else {"node_name": f"node-{node}"}
            after = replace(pod, **STATES[kind] | on_node)
            world.attempts.changed(before, after, world.now)
            self.last[uid] = after

    def end(self) -> None:
        for uid in UIDS:
            self.world.attempts.changed(self.last.get(uid, self.new_pod(uid)), None, self.world.now)
        self.world.at(3_601)


@settings(deadline=None, derandomize=True, max_examples=120)
@given(events=EVENTS)
def test_every_attempt_closes_exactly_once(make_world, new_pod, events):
    with tempfile.TemporaryDirectory() as folder, ExperienceStore(Path(folder)) as store:
        world, before = make_world(store), _closed()
        script = Script(world, new_pod)
        rewards = {}
        for event in events:
            script.play(*event)
        for row in world.rows():
            if row.result is not None:
                rewards[row.decision.id] = row.result.reward
        script.end()
        rows = world.rows()
        assert all(row.result is not None and row.final for row in rows)
        assert _closed() - before == len(rows)
        assert sorted(row.closed for row in rows) == list(range(1, len(rows) + 1))
        assert [row.decision.id for row in rows] == list(range(1, len(rows) + 1))
        for row in rows:
            assert rewards.get(row.decision.id, row.result.reward) == row.result.reward
            assert (row.result.reward is None) or all(-6 <= term <= 6 for term in row.result.reward)
            assert not row.result.learnable or row.result.node
        _nothing_is_left(world.attempts)


def _nothing_is_left(attempts):
    assert not attempts._pods
    assert not attempts._heard
    assert not attempts._waiting
    assert not attempts._rates._state
    assert not attempts._rates._where
    assert attempts._full_bytes == 0


@settings(deadline=None, derandomize=True, max_examples=40)
@given(events=EVENTS, kill=st.integers(0, 30))
def test_a_second_process_closes_what_the_first_left(make_world, new_pod, events, kill):
    with tempfile.TemporaryDirectory() as folder:
        with ExperienceStore(Path(folder)) as store:
            script = Script(make_world(store), new_pod)
            for event in events[:kill]:
                script.play(*event)
        with ExperienceStore(Path(folder)) as store:
            script.world = make_world(store, now=script.world.now)
            for event in events[kill:]:
                script.play(*event)
            script.end()
            rows = script.world.rows()
            assert all(row.result is not None and row.final for row in rows)
            assert sorted(row.closed for row in rows) == list(range(1, len(rows) + 1))
            _nothing_is_left(script.world.attempts)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    repeats=st.lists(st.integers(1, 3), min_size=5, max_size=5),
    end=st.sampled_from(["succeeded", "evicted", "rejected"]),
    swap=st.booleans(),
)
def test_a_life_seen_with_repetitions_gives_one_learnable_transition(make_world, new_pod, repeats, end, swap):
    """Pending, decided, bound, ended, deleted; each told one to three times, the first two in any order."""
    with tempfile.TemporaryDirectory() as folder, ExperienceStore(Path(folder)) as store:
        world = make_world(store)
        script = Script(world, new_pod)
        life = ["pending", "decided", "bound", end, "deleted"]
        told = list(zip(life, [*repeats[:1], 1, *repeats[2:]], strict=True))
        if swap:
            told[0], told[1] = told[1], told[0]
        for kind, count in told:
            for _ in range(count):
                script.play(kind, "a", 2, True, 0.0)
            world.at(10)
        (row,) = world.rows()
        assert row.final
        assert row.result.learnable
        assert (row.result.outcome in COSTLY) == (end != "succeeded")
        _nothing_is_left(world.attempts)
