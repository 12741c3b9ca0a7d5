# SPDX-License-Identifier: Apache-2.0
"""The scheduling policies in force: which one holds for a pod, and how far it is served right now.

`Policies` is filled by the operator and asked at every decision, so a change acts on the next one. It knows
no API. Without any SchedulingPolicy in the cluster the client's own default holds for every pod; as soon as
there is one, pods that none selects are left alone. Until the first list is in, nothing is served beyond
Shadow, since a policy that says Off may still be unread.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shoal_client.policies.spec import (
    POLICY_KIND,
    Mode,
    PrivacyBudget,
    SchedulingPolicySpec,
    Selector,
    read_spec,
)
from shoal_common.errors import InputError
from shoal_common.fields import Field
from shoal_common.manifests import read_label_selector
from shoal_common.pods import PodRecord
from shoal_common.reward import ObjectiveWeights
from shoal_common.selectors import LabelSelector

Labels = Mapping[str, str]

PARTS = 10_000
"""Owners are spread over so many parts: one is a hundredth of a per cent."""

LONGEST_COOLDOWN = 7 * 86400.0
"""Seconds."""


@dataclass(frozen=True, slots=True)
class AppliedPolicy:
    """A policy as it holds at this moment. `name` is empty for the client's own default."""

    name: str
    uid: str
    generation: int
    mode: Mode  # after the kill switch and rollbacks; spec.mode is what was asked for
    spec: SchedulingPolicySpec
    weights: ObjectiveWeights  # of the spec, adapted to its targets
    rolled_back: str = ""  # why the mode is not the spec's

    def serves(self, pod: PodRecord) -> bool:
        """Whether this pod's answers are the policy's; otherwise they are neutral and only recorded."""
        if self.mode is Mode.CANARY:
            return in_canary(pod, self.spec.canary_percent or 0)
        return self.mode is Mode.ACTIVE

    def admits(self, digest: str) -> bool:
        """Whether an artifact of this digest may serve."""
        wanted = self.spec.policy_ref.digest if self.spec.policy_ref else None
        return wanted is None or wanted.removeprefix("sha256:") == digest.removeprefix("sha256:")


@dataclass(frozen=True, slots=True)
class Rollback:
    """A policy was taken back to Shadow: why, at which generation, how often so far, until when."""

    reason: str
    generation: int
    count: int
    until: float  # monotonic


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """A SchedulingPolicy object and what was made of it: a policy in force, or the error in it."""

    obj: Mapping[str, Any]
    applied: AppliedPolicy | None
    error: str = ""
    rollback: Rollback | None = None


@dataclass(frozen=True, slots=True)
class _Rule:
    """A policy with its selectors compiled; None selects everything."""

    policy: AppliedPolicy
    order: tuple[int, str, str]
    pods: LabelSelector | None
    namespaces: LabelSelector | None

    def selects(self, pod: PodRecord, namespace_labels: Labels) -> bool:
        schedulers = self.policy.spec.selector.scheduler_names
        return (
            (not schedulers or pod.scheduler_name in schedulers)
            and (self.pods is None or self.pods.matches(pod.labels))
            and (self.namespaces is None or self.namespaces.matches(namespace_labels))
        )


class Policies:
    """A thread-safe registry. `for_pod` takes no lock: it reads one immutable tuple of rules."""

    def __init__(
        self,
        default_mode: Mode = Mode.SHADOW,
        *,
        killed: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._killed, self._clock = killed, clock
        spec = SchedulingPolicySpec(mode=default_mode, canary_percent=0)
        mode = Mode.OFF if killed else default_mode
        self._default = AppliedPolicy("", "", 0, mode, spec, spec.objectives.weights())
        self._unsynced = replace(self._default, mode=mode if mode is Mode.OFF else Mode.SHADOW)
        self._objects: dict[str, Mapping[str, Any]] = {}
        self._rollbacks: dict[str, Rollback] = {}
        self._adapted: dict[str, tuple[int, ObjectiveWeights]] = {}
        self._entries: Mapping[str, PolicyEntry] = {}
        self._rules: tuple[_Rule, ...] = ()
        self._rebuild_at = float("inf")
        self._synced = False
        self._listeners: list[Callable[[], None]] = []
        self._mutex = threading.Lock()

    def for_pod(self, pod: PodRecord, namespace_labels: Labels) -> AppliedPolicy | None:
        """The policy for a pod; None when there are policies and none selects it.

        Of several the one of the highest priority holds, then the oldest, then the first by name.
        """
        if not self._synced:
            return self._unsynced
        if self._clock() >= self._rebuild_at:
            self._change(lambda: None)
        if not self._entries:
            return self._default
        return next((rule.policy for rule in self._rules if rule.selects(pod, namespace_labels)), None)

    def objects(self) -> dict[str, Mapping[str, Any]]:
        """Every known object by name."""
        with self._mutex:
            return dict(self._objects)

    def entries(self) -> Mapping[str, PolicyEntry]:
        """Every known policy by name, in force or not; not to be changed."""
        if self._clock() >= self._rebuild_at:
            self._change(lambda: None)
        return self._entries

    @property
    def synced(self) -> bool:
        """Whether the cluster's policies were read once."""
        return self._synced

    def mark_synced(self) -> None:
        """Say that every policy that exists was set, or that the cluster knows no such resource."""
        self._synced = True
        self._change(lambda: None)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every change, in the thread that made it; it must not block."""
        self._listeners.append(listener)

    def set(self, obj: Mapping[str, Any]) -> None:
        """Take up a SchedulingPolicy object, unless a newer version of it is known.

        One with an error in it is out of force until it is mended.
        """

        def put() -> None:
            name = obj["metadata"]["name"]
            if not is_older(obj, self._objects.get(name)):
                self._objects[name] = obj

        self._change(put)

    def delete(self, name: str) -> None:
        """Forget a policy."""

        def forget() -> None:
            self._objects.pop(name, None)
            self._rollbacks.pop(name, None)
            self._adapted.pop(name, None)

        self._change(forget)

    def roll_back(self, name: str, reason: str) -> None:
        """Take a policy back to Shadow until its spec changes or its cool-down ends.

        The cool-down doubles each time the same spec is rolled back, up to `LONGEST_COOLDOWN`.
        """

        def take_back() -> None:
            entry = self._entries.get(name)
            if entry is not None and entry.applied is not None:
                count = self._times(name, entry.applied.generation) + 1
                self._rollbacks[name] = self._rollback(entry.applied, reason, count)

        self._change(take_back)

    def adapt(self, name: str, weights: ObjectiveWeights) -> None:
        """Let these weights hold for a policy until its spec changes."""

        def put() -> None:
            entry = self._entries.get(name)
            if entry is not None and entry.applied is not None:
                self._adapted[name] = (entry.applied.generation, weights)

        self._change(put)

    def privacy(self) -> PrivacyBudget | None:
        """The strictest privacy budget of all policies, by each of its numbers; None when none sets one."""
        specs = [e.applied.spec for e in self._entries.values() if e.applied is not None]
        budgets = [spec.privacy for spec in specs if spec.privacy is not None]
        if not budgets:
            return None
        return PrivacyBudget(
            epsilon=min(b.epsilon for b in budgets),
            delta=min(b.delta for b in budgets),
            clip_norm=min((b.clip_norm for b in budgets if b.clip_norm is not None), default=None),
        )

    def _change(self, change: Callable[[], None]) -> None:
        with self._mutex:
            change()
            entries = {name: self._enter(name, obj) for name, obj in sorted(self._objects.items())}
            rules = [
                _rule(entry.obj, entry.applied) for entry in entries.values() if entry.applied is not None
            ]
            self._rules = tuple(sorted(rules, key=lambda rule: rule.order))
            now = self._clock()
            pending = [r.until for r in self._rollbacks.values() if r.until > now]
            self._rebuild_at = min(pending, default=float("inf"))
            self._entries = entries
        for listener in self._listeners:
            listener()

    def _enter(self, name: str, obj: Mapping[str, Any]) -> PolicyEntry:
        try:
            spec = read_spec(SchedulingPolicySpec, POLICY_KIND, obj)
        except InputError as error:
            return PolicyEntry(obj, None, str(error))
        metadata = obj["metadata"]
        generation = int(metadata.get("generation") or 0)
        adapted_at, weights = self._adapted.get(name, (-1, spec.objectives.weights()))
        if adapted_at != generation:
            weights = spec.objectives.weights()
        policy = AppliedPolicy(name, metadata.get("uid") or "", generation, spec.mode, spec, weights)
        rollback = self._recall(policy, obj)
        mode = Mode.OFF if self._killed else spec.mode
        if rollback is not None and mode in (Mode.CANARY, Mode.ACTIVE):
            policy = replace(policy, rolled_back=rollback.reason)
            mode = Mode.SHADOW
        return PolicyEntry(obj, replace(policy, mode=mode), rollback=rollback)

    def _recall(self, policy: AppliedPolicy, obj: Mapping[str, Any]) -> Rollback | None:
        """The rollback that holds: ours, or one in the object's status that we do not know (a restart)."""
        known = self._rollbacks.get(policy.name)
        if known is not None and known.generation != policy.generation:
            known = None
            del self._rollbacks[policy.name]
        noted = (obj.get("status") or {}).get("rollback") or {}
        count = int(noted.get("count") or 0)
        if noted.get("generation") == policy.generation and count > (known.count if known else 0):
            known = self._rollback(policy, str(noted.get("reason") or "rolled back"), count)
            self._rollbacks[policy.name] = known
        return known if known is not None and known.until > self._clock() else None

    def _times(self, name: str, generation: int) -> int:
        known = self._rollbacks.get(name)
        return known.count if known is not None and known.generation == generation else 0

    def _rollback(self, policy: AppliedPolicy, reason: str, count: int) -> Rollback:
        seconds = policy.spec.guardrails.cooldown_seconds * 2.0 ** min(count - 1, 30)
        return Rollback(reason, policy.generation, count, self._clock() + min(seconds, LONGEST_COOLDOWN))


def in_canary(pod: PodRecord, percent: float) -> bool:
    """Whether a pod's owner (the pod itself without one) is in the first `percent` of all owners.

    Stable: an owner that is in stays in while the share grows, and its pods are always together.
    """
    digest = hashlib.sha256((pod.owner_uid or pod.uid).encode()).digest()
    return int.from_bytes(digest[:8], "big") % PARTS < percent * PARTS / 100


def is_older(obj: Mapping[str, Any], known: Mapping[str, Any] | None) -> bool:
    """Whether an API object is an earlier version of a known one.

    Lists and watches arrive on different ways. Resource versions are whole numbers that grow (KEP-5504); ones
    that are not are never older.
    """
    if known is None or obj["metadata"].get("uid") != known["metadata"].get("uid"):
        return False
    versions = [str(o["metadata"].get("resourceVersion") or "") for o in (obj, known)]
    return all(v.isdecimal() for v in versions) and int(versions[0]) < int(versions[1])


def _rule(obj: Mapping[str, Any], policy: AppliedPolicy) -> _Rule:
    selector, created = policy.spec.selector, obj["metadata"].get("creationTimestamp") or ""
    pods, namespaces = _compiled(selector.pod_selector), _compiled(selector.namespace_selector)
    return _Rule(policy, (-policy.spec.priority, created, policy.name), pods, namespaces)


def _compiled(selector: Selector | None) -> LabelSelector | None:
    if selector is None:
        return None
    return read_label_selector(
        Field(POLICY_KIND, "spec.selector", selector.model_dump(by_alias=True, mode="json"))
    )
