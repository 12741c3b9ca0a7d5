# SPDX-License-Identifier: Apache-2.0
"""The answers to kube-scheduler, whatever carries them: prioritize, filter, bind, preempt.

Decisions are taken one after the other by one thread, so that the room which one takes is gone for the next.
Whoever asks waits no longer than the policy's deadline; then, and after any failure, the answer is neutral
and counted by its reason. A decision that comes too late has no effect.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar, final

from shoal_client.experience.records import F32, Mode, Source
from shoal_client.kube.errors import Conflict
from shoal_client.metrics import BREAKER_OPEN, DECISIONS, FALLBACKS, MASKED_NODES
from shoal_client.policies.registry import AppliedPolicy
from shoal_client.policies.spec import OnError
from shoal_client.serve.breaker import Breaker
from shoal_client.serve.decider import Decider, Judgement
from shoal_client.serve.guard import BY_MODE, Guard, Plan, Reason
from shoal_client.serve.live import LiveState
from shoal_client.serve.masks import Filtered, filtered
from shoal_client.serve.payloads import Binding, Candidates, MetaVictims
from shoal_client.serve.scoring import forced_scores, integer_scores
from shoal_common.observation import Observation
from shoal_common.pods import PodRecord

LONGEST_REASON = 500
TRIES = 2  # judgements for one answer

Answer = TypeVar("Answer")

_log = logging.getLogger("shoal.client.serve")


class Decisions(Protocol):
    """Who records decisions; see `experience.recorder.Recorder`."""

    def decided(
        self,
        pod: PodRecord,
        observation: Observation,
        names: Sequence[str],
        *,
        chosen: int,
        source: Source,
        mode: Mode,
        policy: str,
        logits: F32 | None = None,
        propensities: F32 | None = None,
    ) -> None:
        """Candidates were scored."""

    def refused(self, pod: PodRecord, reason: str, *, source: Source, mode: Mode, policy: str) -> None:
        """An attempt placed nothing."""


class Binder(Protocol):
    """What is asked of the API to bind a pod."""

    def bind(self, name: str, namespace: str, node: str, uid: str = "") -> None:
        """Bind a pod; Conflict where it is bound already."""


class Watcher(Protocol):
    """Who compares what was decided with what becomes of it."""

    def decided(self, pod: PodRecord, plan: Plan, nodes: Sequence[str]) -> None:
        """The policy would take one of these nodes."""

    def doubtful(self, plan: Plan, reason: Reason) -> None:
        """The policy gave something that no policy may give."""


@dataclass(frozen=True, slots=True)
class Pending(Generic[Answer]):
    """An answer that is being worked out, and what to say when it does not come in time."""

    future: Future[Answer]
    seconds: float
    late: Callable[[], Answer]

    def wait(self) -> Answer:
        """The answer, at the latest after the deadline."""
        try:
            return self.future.result(self.seconds)
        except (TimeoutError, CancelledError):
            return self.late()


@dataclass(frozen=True, slots=True)
class Prioritized:
    """Scores of N nodes, 0 to `scale`; all 0 where there is a `reason` why the policy has no say."""

    scores: list[int]
    scale: int
    policy: str  # digest of the loaded policy, "" without one
    reason: Reason | None = None


@final
class DecisionService:
    """Answers requests; every method may be called from any thread."""

    def __init__(
        self,
        live: LiveState,
        decider: Decider,
        guard: Guard,
        recorder: Decisions | None = None,
        watcher: Watcher | None = None,
        breaker: Breaker | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._live, self._decider, self._guard = live, decider, guard
        self._recorder, self._watcher = recorder, watcher
        self._breaker = breaker or Breaker()
        self._filtering = Breaker()  # of its own: masks that work must not hide that scores fail
        self._clock = clock
        self._worker = ThreadPoolExecutor(1, "decide")
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Take no more requests."""
        self._stopped.set()
        self._worker.shutdown(wait=False, cancel_futures=True)

    def prioritize(self, asked: Candidates, source: Source = "extender") -> Pending[Prioritized]:
        """Scores of the asked nodes, in their order."""
        plan = self._plan(asked.pod)
        if len(asked.names) < 2 and plan.reason is None:
            plan = Plan(plan.applied, "no_candidates", plan.serves)
        return self._ask(
            plan,
            lambda expires: self._scores(asked, plan, source, expires),
            lambda reason: self._neutral(asked, plan, reason, source),
            self._breaker,
        )

    def filter(self, asked: Candidates) -> Pending[Filtered]:
        """Which of the asked nodes may take the pod; all of them unless the policy is served."""
        plan = self._plan(asked.pod)
        if plan.reason is None and not (plan.serves and self._guard.masks(asked.pod)):
            plan = Plan(plan.applied, "shadow")
        return self._ask(
            plan,
            lambda expires: self._filter(asked, plan, expires),
            lambda reason: self._unfiltered(asked, plan, reason),
            self._filtering,
        )

    def _plan(self, pod: PodRecord) -> Plan:
        labels = self._live.namespace_labels(pod.namespace)
        return self._guard.plan(pod, labels, self._decider.digest)

    def _ask(
        self,
        plan: Plan,
        work: Callable[[float], Answer],
        neutral: Callable[[Reason], Answer],
        breaker: Breaker,
    ) -> Pending[Answer]:
        """Hand work to the deciding thread, unless the plan or the breaker says not to."""
        reason = plan.reason
        if reason is None and (self._stopped.is_set() or not breaker.admits()):
            reason = "breaker_open"
        if reason is not None:
            done: Future[Answer] = Future()
            done.set_result(neutral(reason))
            return Pending(done, 0.0, done.result)
        expires = self._clock() + plan.deadline_seconds
        future = self._worker.submit(self._guarded, work, neutral, breaker, expires)

        def late() -> Answer:
            future.cancel()
            self._failed(breaker)
            return neutral("deadline")

        return Pending(future, plan.deadline_seconds, late)

    def _guarded(
        self,
        work: Callable[[float], Answer],
        neutral: Callable[[Reason], Answer],
        breaker: Breaker,
        expires: float,
    ) -> Answer:
        """Run on the deciding thread; what is raised becomes a neutral answer, but for a TimeoutError."""
        try:
            return work(expires)
        except TimeoutError:  # whoever still waits says so, once
            raise
        except Exception:  # the scheduler must get an answer, whatever broke
            _log.exception("a decision failed")
            self._failed(breaker)
            return neutral("error")

    def _failed(self, breaker: Breaker) -> None:
        breaker.failed()
        self._show_breakers()

    def _worked(self, breaker: Breaker) -> None:
        breaker.succeeded()
        self._show_breakers()

    def _show_breakers(self) -> None:
        BREAKER_OPEN.set(self._breaker.open or self._filtering.open)

    def _in_time(self, expires: float) -> None:
        """Raise TimeoutError where nobody waits for an answer any more: it must have no effect."""
        if self._clock() >= expires:
            raise TimeoutError

    def _scores(self, asked: Candidates, plan: Plan, source: Source, expires: float) -> Prioritized:
        assert plan.applied is not None  # noqa: S101 (a plan without a reason has a policy)
        if plan.serves:
            self._live.release(asked.pod.uid)  # an earlier attempt's room is this one's
        found = self._held(asked, plan, plan.applied, expires)
        self._record(asked.pod, found, plan, source)
        if found.reason != "not_finite":
            self._worked(self._breaker)
        if found.reason is not None:
            self._doubt(plan, found.reason)
            return self._neutral(asked, plan, found.reason, source, recorded=found.observation is not None)
        if self._watcher is not None:
            drawn = found.decision is not None and found.decision.propensities is not None
            self._watcher.decided(asked.pod, plan, found.best[:1] if drawn else found.best)
        if not plan.serves:
            return self._neutral(asked, plan, "shadow", source)
        DECISIONS.labels(plan.recorded_mode, "policy").inc()
        return Prioritized(self._integers(found, plan), plan.scale, found.policy)

    def _held(self, asked: Candidates, plan: Plan, applied: AppliedPolicy, expires: float) -> Judgement:
        """A judgement in time, with room held on its choice where it is served.

        An actuator decides in a thread of its own: where it took that room meanwhile, what is left is judged.
        """
        for _ in range(TRIES):
            found = self._decider.judge(asked.pod, asked.names, applied)
            self._in_time(expires)
            if found.reason is not None or not plan.serves:
                break
            if not self._live.try_reserve(asked.pod, found.names[found.chosen]):
                break
        return found

    def _integers(self, found: Judgement, plan: Plan) -> list[int]:
        assert found.decision is not None  # noqa: S101
        scores: list[int]
        logits = found.known.astype("float32")
        logits[found.known] = found.decision.scores.logits[0].max(-1)
        if found.decision.propensities is not None:
            place = int(found.known.nonzero()[0][found.chosen])
            scores = forced_scores(place, len(logits), plan.scale).tolist()
        else:
            scores = integer_scores(logits, found.feasible, found.known, plan.scale).tolist()
        return scores

    def _record(self, pod: PodRecord, found: Judgement, plan: Plan, source: Source) -> None:
        """Tell the recorder, before the answer leaves: the bind may follow within a millisecond."""
        if self._recorder is None or found.observation is None:
            return
        decision, chances = found.decision, None
        if plan.serves and decision is not None and decision.propensities is not None:
            chances = decision.propensities.reshape(found.observation.mask[0].shape).astype("float32")
        self._recorder.decided(
            pod,
            found.observation,
            found.names,
            chosen=-1 if decision is None else int(decision.action[0]),
            source=source,
            mode=plan.recorded_mode,
            policy=found.policy,
            logits=None if decision is None else decision.scores.logits[0],
            propensities=chances,
        )

    def _neutral(
        self, asked: Candidates, plan: Plan, reason: Reason, source: Source, recorded: bool = False
    ) -> Prioritized:
        """Equal scores, counted, and where something failed told to the recorder."""
        FALLBACKS.labels(reason).inc()
        DECISIONS.labels(plan.recorded_mode, "fallback").inc()
        if reason not in BY_MODE and not recorded:
            self._refused(asked.pod, plan, reason, source)
        return Prioritized([0] * len(asked.names), plan.scale, self._decider.digest or "", reason)

    def _refused(self, pod: PodRecord, plan: Plan, reason: str, source: Source) -> None:
        if self._recorder is not None:
            policy = self._decider.digest or ""
            self._recorder.refused(pod, reason, source=source, mode=plan.recorded_mode, policy=policy)

    def _doubt(self, plan: Plan, reason: Reason) -> None:
        if reason == "not_finite":
            self._failed(self._breaker)
            if self._watcher is not None:
                self._watcher.doubtful(plan, reason)

    def _filter(self, asked: Candidates, plan: Plan, expires: float) -> Filtered:
        assert plan.applied is not None  # noqa: S101
        closed = plan.applied.spec.fallback.on_error is OnError.FAIL_CLOSED
        self._live.release(asked.pod.uid)
        found = filtered(self._live, asked, closed)
        self._in_time(expires)
        if len(found.kept) == 1:  # no prioritize follows
            found = self._claimed(asked, found)
        self._worked(self._filtering)
        MASKED_NODES.labels("full").inc(len(found.failed))
        MASKED_NODES.labels("lacking").inc(len(found.unresolvable))
        if not found.kept:
            reasons = sorted({*found.failed.values(), *found.unresolvable.values()})
            self._refused(asked.pod, plan, "; ".join(reasons)[:LONGEST_REASON], "extender")
        return found

    def _claimed(self, asked: Candidates, found: Filtered) -> Filtered:
        """Hold the room on the only node that is left, or lose it to who was there first."""
        name = asked.names[found.kept[0]]
        lacking = self._live.try_reserve(asked.pod, name) if name in self._live.nodes else ()
        return (
            replace(found, kept=(), failed={**found.failed, name: "; ".join(lacking)}) if lacking else found
        )

    def _unfiltered(self, asked: Candidates, plan: Plan, reason: Reason) -> Filtered:
        """Every node passes, or an error where the policy says to fail closed."""
        FALLBACKS.labels(reason).inc()
        closed = plan.serves and plan.applied is not None and reason not in BY_MODE
        if closed and plan.applied is not None and plan.applied.spec.fallback.on_error is OnError.FAIL_CLOSED:
            return Filtered(error=f"shoal cannot decide now ({reason}) and the policy fails closed")
        return Filtered(kept=range(len(asked.names)))


def bind(api: Binder, wanted: Binding, bound_to: Callable[[Binding], str]) -> str:
    """Bind a pod and say why not, "" where it is bound as wanted; asking twice is a success twice.

    `bound_to` tells the node of this very pod (by uid), "" where it has none.
    """
    try:
        api.bind(wanted.pod_name, wanted.pod_namespace, wanted.node, wanted.pod_uid)
    except Conflict as error:
        return "" if bound_to(wanted) == wanted.node else str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def allowed_victims(
    asked: Mapping[str, MetaVictims], known: Callable[[str], bool], refuse: bool
) -> dict[str, MetaVictims]:
    """Nodes on which preemption may go on: none by default, else those whose victims are all known pods."""
    if refuse:
        return {}
    return {
        node: victims for node, victims in asked.items() if victims.uids and all(map(known, victims.uids))
    }
