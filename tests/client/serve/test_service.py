# SPDX-License-Identifier: Apache-2.0
"""The answers to kube-scheduler over a real state and a real artifact."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal_client.collect.measured import Measured
from shoal_client.kube.errors import Conflict, Refused
from shoal_client.metrics import DECISIONS, FALLBACKS
from shoal_client.serve.breaker import FAILURES, Breaker
from shoal_client.serve.decider import Decider
from shoal_client.serve.payloads import Binding, read_victims
from shoal_client.serve.service import allowed_victims, bind
from shoal_common.decide import decide, observe
from shoal_common.reward import ObjectiveWeights
from shoal_common.tables import pod_row
from shoal_simulations.control_plane.builders import node

from .conftest import World, some_nodes

MIG = "nvidia.com/mig-1g.5gb"


def fallbacks(reason: str) -> float:
    return float(FALLBACKS.labels(reason)._value.get())


def test_active_answers_are_the_decision_paths(world: World) -> None:
    asked = world.asked(cpu="2")
    scores = world.scores(asked)
    seen = world.recorded.decisions[0][1]["observation"]
    world.live.release(asked.pod.uid)
    tables, row, rows = world.live.cluster, pod_row(asked.pod), world.live.rows(asked.names)
    expected = observe(
        tables, row, tables.feasible(row)[rows][:, None], ObjectiveWeights().array(), rows=rows
    )
    for part in ("node", "pair", "task", "mask", "w"):
        np.testing.assert_array_equal(getattr(seen, part), getattr(expected, part), part)
    assert world.artifact.current is not None
    logits = decide(world.artifact.current.scorer, seen).scores.logits[0, :, 0]
    assert scores[int(logits.argmax())] == 10
    assert sorted(scores) == [scores[i] for i in np.argsort(logits, kind="stable")]
    assert all(isinstance(s, int) and 0 <= s <= 10 for s in scores)


@pytest.mark.parametrize(("mode", "served"), [("Off", False), ("Shadow", False), ("Active", True)])
def test_only_what_is_served_differs_between_nodes(artifact: Path, mode: str, served: bool) -> None:
    world = World(artifact, mode).nodes(*some_nodes())
    assert (len(set(world.scores(world.asked()))) > 1) is served
    assert len(world.recorded.decisions) == (mode != "Off")
    assert (world.live.reserved == 1) is served
    world.service.stop()


def test_a_canary_serves_whole_owners(artifact: Path) -> None:
    world = World(artifact, "Canary", canaryPercent=40).nodes(*some_nodes())
    served = {}
    for i in range(40):
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"o{i % 10}", "uid": f"o{i % 10}"}
        scores = world.scores(world.asked(name=f"p{i}", owner=owner))
        served.setdefault(i % 10, set()).add(len(set(scores)) > 1)
    assert all(len(seen) == 1 for seen in served.values())
    assert 0 < sum(seen == {True} for seen in served.values()) < 10
    modes = {more["mode"] for _, more in world.recorded.decisions}
    assert modes == {"canary", "shadow"}
    world.service.stop()


def test_case_1_five_thousand_names_are_answered_from_the_own_cache(artifact: Path) -> None:
    world = World(artifact).nodes(*(node(f"n{i:04d}", cpu=4 + i % 9) for i in range(5000)))
    asked = world.asked()
    assert asked.nodes is None
    scores = world.scores(asked)
    assert len(scores) == 5000
    assert len(set(scores)) > 1
    assert 10 in scores
    world.service.stop()


def test_case_7_a_slow_decision_is_neutral_at_its_deadline_and_has_no_effect(world: World) -> None:
    world.policy(mode="Active", fallback={"timeoutMs": 50})
    hold, real = threading.Event(), world.live.rows
    world.live.rows = lambda names: (hold.wait(5.0), real(names))[1]  # type: ignore[method-assign]
    before = fallbacks("deadline")
    asked = world.asked()
    assert world.scores(asked) == [0] * 4
    assert fallbacks("deadline") == before + 1
    hold.set()
    world.policy(mode="Active", fallback={"timeoutMs": 5000})
    assert len(set(world.scores(world.asked(name="next")))) > 1
    assert [p.name for p, _ in world.recorded.decisions] == ["next"]
    assert world.recorded.refusals == [("p", "deadline")]
    assert world.live.reserved == 1


def test_the_breaker_answers_at_once_while_decisions_fail(world: World) -> None:
    world.breaker = Breaker(2, 60.0)
    world.service._breaker = world.breaker
    world.live.rows = None  # type: ignore[assignment, method-assign]
    before = fallbacks("error"), fallbacks("breaker_open")
    for _ in range(5):
        assert world.scores(world.asked()) == [0] * 4
    assert (fallbacks("error") - before[0], fallbacks("breaker_open") - before[1]) == (2, 3)


def test_case_8_the_filter_goes_by_api_objects_alone(world: World) -> None:
    hot = {f"n{i}": Measured(cpu_millicores=1e6, memory_bytes=1e15, age_seconds=1e6) for i in range(4)}
    world.live.measure(hot)
    found = world.service.filter(world.asked(cpu="1")).wait()
    assert list(found.kept) == [0, 1, 2, 3]
    assert (dict(found.failed), dict(found.unresolvable)) == ({}, {})


def test_case_10_full_now_and_lacking_for_ever_are_told_apart(artifact: Path) -> None:
    slices = [node("has", resources={MIG: 2}), node("full", resources={MIG: 1}), node("none")]
    world = World(artifact).nodes(*slices)
    holder = world.asked(name="holder", resources={MIG: 1}).pod
    world.live.reserve(holder, "full")
    found = world.service.filter(world.asked(resources={MIG: 1})).wait()
    assert list(found.kept) == [0]
    assert dict(found.failed) == {"full": f"Insufficient {MIG}"}
    assert dict(found.unresolvable) == {"none": f"Insufficient {MIG}"}
    world.service.stop()


def test_case_11_preemption_never_invents_victims() -> None:
    asked = read_victims(
        json.dumps(
            {
                "NodeNameToMetaVictims": {
                    "known": {"Pods": [{"UID": "a"}, {"UID": "b"}], "NumPDBViolations": 1},
                    "stranger": {"Pods": [{"UID": "a"}, {"UID": "z"}]},
                    "empty": {"Pods": []},
                    "null": {"Pods": None},
                }
            }
        ).encode()
    )
    known = {"a", "b"}.__contains__
    assert allowed_victims(asked, known, refuse=True) == {}
    allowed = allowed_victims(asked, known, refuse=False)
    assert list(allowed) == ["known"]
    assert allowed["known"].uids == ("a", "b")


@pytest.mark.parametrize(("on_error", "kept"), [("Neutral", [0, 1]), ("FailClosed", [0])])
def test_case_12_unknown_nodes_pass_unless_the_policy_fails_closed(
    artifact: Path, on_error: str, kept: list[int]
) -> None:
    world = World(artifact, fallback={"timeoutMs": 5000, "onError": on_error}).nodes(node("n0"))
    found = world.service.filter(world.asked(names=["n0", "stranger"])).wait()
    assert list(found.kept) == kept
    assert set(found.failed) == ({"stranger"} if on_error == "FailClosed" else set())
    world.service.stop()


def test_nodes_that_are_not_known_get_the_middle(world: World) -> None:
    scores = world.scores(world.asked(names=["n0", "stranger", "n3"]))
    assert scores[1] == 5
    assert 10 in scores
    assert world.scores(world.asked(names=["stranger", "other"])) == [0, 0]


def test_full_nodes_get_nothing_and_all_full_is_neutral(world: World) -> None:
    scores = world.scores(world.asked(cpu="20"))
    assert scores[:2] == [0, 0]
    assert max(scores) == 10
    assert world.scores(world.asked(cpu="90")) == [0] * 4
    assert world.recorded.decisions[-1][1]["chosen"] == -1


def test_one_hundred_pods_and_one_free_slice_have_one_winner(artifact: Path) -> None:
    world = World(artifact).nodes(node("gpu", resources={MIG: 1}), node("cpu"))
    requests = [world.asked(name=f"p{i}", resources={MIG: 1}) for i in range(100)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda asked: world.service.filter(asked).wait(), requests))
    assert sum(list(a.kept) == [0] for a in answers) == 1
    assert sum("gpu" in a.failed for a in answers) == 99
    again = world.service.filter(requests[[bool(a.kept) for a in answers].index(True)]).wait()
    assert list(again.kept) == [0]
    world.service.stop()


def test_room_that_was_just_decided_is_gone_for_the_next(artifact: Path) -> None:
    world = World(artifact).nodes(node("a", cpu=4), node("b", cpu=4))
    chosen = []
    for i in range(2):
        scores = world.scores(world.asked(name=f"p{i}", cpu=3))
        chosen.append(scores.index(10))
    assert sorted(chosen) == [0, 1]
    assert world.scores(world.asked(name="p2", cpu=3)) == [0, 0]
    assert world.scores(world.asked(name="p1", cpu=3))[chosen[1]] == 10
    world.service.stop()


def test_exploration_forces_the_draw_and_records_its_chances(artifact: Path) -> None:
    world = World(artifact, exploration={"epsilon": 0.2}).nodes(*some_nodes())
    for i in range(20):
        scores = world.scores(world.asked(name=f"p{i}"))
        assert sorted(scores) == [0, 0, 0, 10]
        more = world.recorded.decisions[-1][1]
        assert more["names"][more["chosen"]] == f"n{scores.index(10)}"
        assert more["propensities"].sum() == pytest.approx(1.0, abs=1e-6)
        world.live.release(f"uid-p{i}")
    world.service.stop()


def test_case_37_requests_stay_the_limit_however_little_is_used(artifact: Path) -> None:
    world = World(artifact).nodes(node("n0", cpu=4), node("n1", cpu=4))
    world.live.reserve(world.asked(name="big", cpu="3500m").pod, "n0")
    world.live.measure({"n0": Measured(cpu_millicores=1.0), "n1": Measured(cpu_millicores=4000.0)})
    found = world.service.filter(world.asked(cpu=1)).wait()
    assert dict(found.failed) == {"n0": "Insufficient cpu"}
    assert world.scores(world.asked(cpu=1)) == [0, 10]
    world.service.stop()


@pytest.mark.parametrize("namespace", ["kube-system", "shoal"])
def test_system_pods_are_never_kept_from_a_node(world: World, namespace: str) -> None:
    found = world.service.filter(world.asked(cpu="90", namespace=namespace)).wait()
    assert list(found.kept) == [0, 1, 2, 3]


def test_without_an_artifact_and_with_stale_caches_answers_are_neutral(artifact: Path) -> None:
    world = World(None).nodes(*some_nodes())
    assert world.service.prioritize(world.asked()).wait().reason == "no_policy"
    world.service.stop()
    world = World(artifact)
    assert world.service.prioritize(world.asked(names=["a", "b"])).wait().reason == "not_synced"
    world.service.stop()


def test_weights_of_the_policy_change_the_next_decision(world: World) -> None:
    counted = float(DECISIONS.labels("active", "policy")._value.get())
    first = world.service.prioritize(world.asked()).wait()
    world.policy(
        mode="Active", scoreScale=1000, objectives={"util": 0, "qos": 0, "energy": 1, "penalty": 0},
        fallback={"timeoutMs": 5000},
    )  # fmt: skip
    second = world.service.prioritize(world.asked()).wait()
    assert (first.scale, second.scale, max(second.scores)) == (10, 1000, 1000)
    seen = [more["observation"].w[0].tolist() for _, more in world.recorded.decisions]
    assert seen[1] == [0, 0, 1, 0] != seen[0]
    assert float(DECISIONS.labels("active", "policy")._value.get()) == counted + 2


class Server:
    """An API server that binds once."""

    def __init__(self, error: Exception | None = None) -> None:
        self.bound: dict[str, str] = {}
        self._error = error

    def bind(self, name: str, namespace: str, node: str, uid: str = "") -> None:
        if self._error is not None:
            raise self._error
        if name in self.bound:
            raise Conflict(f"pod {name} is already assigned to node {self.bound[name]!r}")
        self.bound[name] = node


def test_binding_twice_is_a_success_twice_and_elsewhere_an_error() -> None:
    server, wanted = Server(), Binding("p", "d", "u", "n1")
    assert [bind(server, wanted, lambda _: server.bound["p"]) for _ in range(2)] == ["", ""]
    other = bind(server, Binding("p", "d", "u", "n2"), lambda _: server.bound["p"])
    assert "already assigned" in other
    broken: Any = Server(Refused("no such node", 404))
    assert "no such node" in bind(broken, wanted, lambda _: "")


def test_what_no_policy_was_trained_for_is_left_to_the_scheduler(artifact: Path) -> None:
    world = World(artifact, drift={"maxClippedRatio": 0.01}).nodes(node("a", cpu=2000), node("b", cpu=2000))
    assert world.service.prioritize(world.asked()).wait().reason == "out_of_distribution"
    assert world.live.reserved == 0
    world.service.stop()


def test_pods_of_another_kind_than_in_the_first_window_count_as_drift(artifact: Path) -> None:
    drift = {"windowDecisions": 100, "maxShift": 0.25}
    world = World(artifact, "Shadow", drift=drift).nodes(*some_nodes())
    small, large = world.asked(cpu="100m"), world.asked(cpu=6, memory="24Gi")
    for asked, reason in ((small, "shadow"), (large, "shadow")):
        for _ in range(100):
            last = world.service.prioritize(asked).wait()
        assert last.reason == (reason if asked is small else "drift")
    world.service.stop()


class Doubts:
    """Who is told of doubtful scores."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def decided(self, *_: Any) -> None:
        pass

    def doubtful(self, plan: Any, reason: str) -> None:
        self.told.append(f"{plan.applied.name}: {reason}")


def test_a_nan_is_neutral_told_and_counted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    doubts = Doubts()
    world.service._watcher = doubts
    assert world.artifact.current is not None
    scorer = type(world.artifact.current.scorer)
    real = scorer.score_tokens

    def broken(self: Any, tokens: Any, obs: Any) -> Any:
        scores = real(self, tokens, obs)
        scores.logits[0, 1] = np.nan
        return scores

    monkeypatch.setattr(scorer, "score_tokens", broken)
    found = world.service.prioritize(world.asked()).wait()
    assert (found.reason, found.scores) == ("not_finite", [0] * 4)
    assert doubts.told == ["p: not_finite"]
    assert world.live.reserved == 0
    for _ in range(FAILURES):  # masks that work hide nothing from the breaker
        found = world.service.prioritize(world.asked()).wait()
        assert len(world.service.filter(world.asked()).wait().kept) == 4
    assert (found.reason, world.breaker.open) == ("not_finite", True) or found.reason == "breaker_open"
    assert world.service.prioritize(world.asked()).wait().reason == "breaker_open"


def test_an_answer_just_too_late_is_counted_once_and_has_no_effect(world: World) -> None:
    ticks = iter([0.0, 9.0])
    world.service._clock = lambda: next(ticks, 9.0)
    before = fallbacks("deadline")
    pending = world.service.prioritize(world.asked())
    pending.future.exception(5.0)  # it is done, and late
    assert pending.wait().reason == "deadline"
    assert fallbacks("deadline") == before + 1
    assert (world.live.reserved, world.recorded.decisions) == (0, [])


def test_room_that_an_actuator_takes_meanwhile_is_judged_again(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(artifact).nodes(node("n1", cpu=2), node("n2", cpu=2))
    real, taken = Decider.judge, []

    def raced(self: Decider, record: Any, names: Any, applied: Any) -> Any:
        found = real(self, record, names, applied)
        if not taken:
            taken.append(found.names[found.chosen])
            world.live.reserve(world.asked(name="gated", cpu=2).pod, taken[0])
        return found

    monkeypatch.setattr(Decider, "judge", raced)
    asked = world.asked(cpu=2)
    scores = dict(zip(asked.names, world.scores(asked), strict=True))
    assert scores[taken[0]] == 0
    assert max(scores.values()) == 10
    assert world.live.reserved == 2
    world.service.stop()


def test_tables_that_grow_between_two_looks_break_no_decision(world: World) -> None:
    decider, real = world.decider, world.live.take_changed
    grown = iter(range(1))

    def growing() -> Any:
        changed = real()
        for _ in grown:
            for i in range(40):
                world.live.apply("Node", "ADDED", world.stamped(node(f"new{i}")))
        return changed

    world.live.take_changed = growing  # type: ignore[method-assign]
    decider.refresh()
    found = world.service.prioritize(world.asked(names=[f"new{i}" for i in range(40)])).wait()
    assert found.reason is None
    assert len(decider._embeddings.tokens) == len(world.live.cluster)
