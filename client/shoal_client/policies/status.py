# SPDX-License-Identifier: Apache-2.0
"""What is reported in the status of our resources: the fields as models, and conditions by the conventions.

Source: metav1.Condition and the Kubernetes API conventions. `lastTransitionTime` moves only when a
condition's status flips; `observedGeneration` says which spec a status is about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import Field, JsonValue

from shoal_client.policies.registry import PolicyEntry
from shoal_client.policies.spec import ApiModel, Mode

READY, POLICY_LOADED, DEGRADED, PROGRESSING = "Ready", "PolicyLoaded", "Degraded", "Progressing"
REFUSED = "ArtifactRefused"  # degraded, and ready all the same
LONGEST_MESSAGE = 1024
BY_TYPE: dict[str, JsonValue] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}


class Condition(ApiModel):
    """A metav1.Condition."""

    type: str = Field(max_length=316)
    status: Literal["True", "False", "Unknown"]
    reason: str = Field(min_length=1, max_length=1024, pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
    message: str = Field(max_length=32768)
    last_transition_time: str = Field(json_schema_extra={"format": "date-time"})
    observed_generation: int | None = Field(default=None, ge=0)


class RollbackStatus(ApiModel):
    """The last rollback of this generation; a client that starts takes it up."""

    generation: int
    count: int = Field(
        ge=1, description="Rollbacks of this generation so far; the cool-down doubles with each."
    )
    reason: str = Field(max_length=LONGEST_MESSAGE)
    time: str = Field(json_schema_extra={"format": "date-time"})


class WeightsStatus(ApiModel):
    """The weights in force, as decimals, summing to 1."""

    util: float
    qos: float
    energy: float
    penalty: float


class SchedulingPolicyStatus(ApiModel):
    """What is made of a SchedulingPolicy."""

    observed_generation: int | None = None
    mode: str | None = Field(
        default=None,
        max_length=16,
        description="The mode in force: Shadow while rolled back, Off while killed.",
    )
    policy_version: str | None = Field(
        default=None, max_length=63, description="Of the artifact that is loaded."
    )
    policy_digest: str | None = Field(default=None, max_length=71)
    weights: WeightsStatus | None = None
    rollback: RollbackStatus | None = None
    conditions: tuple[Condition, ...] | None = Field(default=None, max_length=8, json_schema_extra=BY_TYPE)


class FederationMembershipStatus(ApiModel):
    """Where this cluster stands in its federation."""

    observed_generation: int | None = None
    round: int | None = Field(
        default=None, ge=0, description="The last round that this cluster took part in."
    )
    epsilon_spent: float | None = Field(default=None, description="Privacy loss so far, from the ledger.")
    epsilon_left: float | None = Field(default=None, description="Of the strictest budget of all policies.")
    delta: float | None = None
    policy_version: str | None = Field(default=None, max_length=63)
    policy_digest: str | None = Field(default=None, max_length=71)
    conditions: tuple[Condition, ...] | None = Field(default=None, max_length=8, json_schema_extra=BY_TYPE)


@dataclass(frozen=True, slots=True)
class Serving:
    """What the serving process has loaded, and what is wrong with it ("" where nothing)."""

    version: str = ""
    digest: str = ""
    error: str = ""  # why no artifact is loaded
    degraded: str = ""  # why answers are neutral at the moment: stale caches, open breaker, drift, ...
    refused: str = ""  # why the artifact on disk is not taken in place of the loaded one, which goes on


@dataclass(frozen=True, slots=True)
class Claim:
    """A condition without its time."""

    type: str
    holds: bool
    reason: str
    message: str = ""


def conditions(
    claims: Sequence[Claim], before: Mapping[str, Any], generation: int, now: str
) -> tuple[Condition, ...]:
    """Claims as conditions; each keeps the time it has in the status `before` unless it flips."""
    known = {c.get("type"): c for c in before.get("conditions") or () if isinstance(c, Mapping)}
    result = []
    for claim in claims:
        old, status = known.get(claim.type) or {}, "True" if claim.holds else "False"
        since = old.get("lastTransitionTime") if old.get("status") == status else None
        result.append(
            Condition(
                type=claim.type,
                status="True" if claim.holds else "False",
                reason=claim.reason,
                message=claim.message[:LONGEST_MESSAGE],
                last_transition_time=since or now,
                observed_generation=generation,
            )
        )
    return tuple(result)


def policy_status(entry: PolicyEntry, serving: Serving, now: str) -> dict[str, Any]:
    """The status of a SchedulingPolicy, ready to be applied."""
    generation, before = int(entry.obj["metadata"].get("generation") or 0), entry.obj.get("status") or {}
    policy = entry.applied
    status = SchedulingPolicyStatus(
        observed_generation=generation,
        mode=policy.mode.value if policy else None,
        policy_version=serving.version or serving.digest[:12] or None,
        policy_digest=serving.digest or None,
        weights=WeightsStatus(**asdict(policy.weights)) if policy else None,
        rollback=_rollback(entry, before, now),
        conditions=conditions(_claims(entry, serving), before, generation, now),
    )
    return status.model_dump(by_alias=True, exclude_none=True, mode="json")


def _rollback(entry: PolicyEntry, before: Mapping[str, Any], now: str) -> RollbackStatus | None:
    if entry.rollback is None:
        return None
    noted = before.get("rollback") or {}
    same = (noted.get("generation"), noted.get("count")) == (entry.rollback.generation, entry.rollback.count)
    return RollbackStatus(
        generation=entry.rollback.generation,
        count=entry.rollback.count,
        reason=entry.rollback.reason[:LONGEST_MESSAGE],
        time=noted.get("time") or now if same else now,
    )


def _claims(entry: PolicyEntry, serving: Serving) -> tuple[Claim, ...]:
    policy = entry.applied
    if policy is None:
        wrong = Claim(READY, False, "Invalid", entry.error)
        return (
            wrong,
            _loaded(entry, serving),
            Claim(DEGRADED, True, "Invalid", entry.error),
            _at_rest("Invalid"),
        )
    loaded, degraded = _loaded(entry, serving), _degraded(entry, serving)
    if policy.mode is Mode.OFF:
        ready = Claim(READY, True, "Off", "every answer is neutral")
    elif not loaded.holds:
        ready = Claim(READY, False, loaded.reason, loaded.message)
    elif degraded.holds and degraded.reason != REFUSED:
        ready = Claim(READY, False, degraded.reason, degraded.message)
    else:
        ready = Claim(READY, True, policy.mode.value, READY_MESSAGES[policy.mode])
    moving = policy.mode in (Mode.SHADOW, Mode.CANARY) and not policy.rolled_back
    progress = Claim(PROGRESSING, True, policy.mode.value, READY_MESSAGES[policy.mode])
    return (ready, loaded, degraded, progress if moving else _at_rest(_rest_reason(entry)))


READY_MESSAGES = {
    Mode.OFF: "every answer is neutral",
    Mode.SHADOW: "decisions are recorded and compared; every answer is neutral",
    Mode.CANARY: "a share of owners is served; the others are in shadow",
    Mode.ACTIVE: "every selected pod is served",
}


def _at_rest(reason: str) -> Claim:
    return Claim(PROGRESSING, False, reason)


def _rest_reason(entry: PolicyEntry) -> str:
    if entry.rollback is not None:
        return "RolledBack"
    return entry.applied.mode.value if entry.applied else "Invalid"


def _loaded(entry: PolicyEntry, serving: Serving) -> Claim:
    if serving.error or not serving.digest:
        return Claim(POLICY_LOADED, False, "NoArtifact", serving.error or "no policy artifact is loaded yet")
    if entry.applied is not None and not entry.applied.admits(serving.digest):
        message = f"policyRef asks for another digest; loaded is {serving.digest}"
        return Claim(POLICY_LOADED, False, "DigestMismatch", message)
    return Claim(POLICY_LOADED, True, "Loaded", f"{serving.version} {serving.digest}".strip())


def _degraded(entry: PolicyEntry, serving: Serving) -> Claim:
    if entry.rollback is not None:
        return Claim(DEGRADED, True, "RolledBack", entry.rollback.reason)
    if serving.degraded:
        return Claim(DEGRADED, True, "Fallback", serving.degraded)
    if serving.refused:
        return Claim(DEGRADED, True, REFUSED, serving.refused)
    return Claim(DEGRADED, False, "AsConfigured")
