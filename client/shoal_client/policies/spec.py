# SPDX-License-Identifier: Apache-2.0
"""What operators write in a `SchedulingPolicy` or `FederationMembership` (shoal.dev/v1alpha1), as models.

Source of everything about the two resources: `python -m shoal_client.policies.crds` writes their definitions
from these models (defaults, bounds, enumerations, CEL rules, descriptions) and the table in
docs/operations/scheduling-policy.md, and the operator reads objects with them. Names are snake_case here and
camelCase in YAML.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from shoal_common.errors import InputError
from shoal_common.reward import ObjectiveWeights

GROUP, VERSION = "shoal.dev", "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
POLICY_KIND, POLICIES_PLURAL = "SchedulingPolicy", "schedulingpolicies"
MEMBERSHIP_KIND, MEMBERSHIPS_PLURAL = "FederationMembership", "federationmemberships"

DIGEST_PATTERN = "^(sha256:)?[0-9a-f]{64}$"
RULES = "x-kubernetes-validations"

Ratio = Annotated[float, Field(ge=0, le=1)]
Multiple = Annotated[float, Field(ge=1, le=100)]


class Mode(StrEnum):
    """How far a policy's scores reach kube-scheduler."""

    OFF = "Off"  # nothing is computed; every answer is neutral
    SHADOW = "Shadow"  # computed, recorded and compared; every answer is neutral
    CANARY = "Canary"  # a stable share of owners is served, the others are in shadow
    ACTIVE = "Active"  # every selected pod is served


class OnError(StrEnum):
    """What the filter verb answers when a decision fails; prioritize is neutral in either case."""

    NEUTRAL = "Neutral"  # every node passes
    FAIL_CLOSED = "FailClosed"  # an error, which an `ignorable: false` stanza turns into a pending pod


def _rule(rule: str, message: str) -> dict[str, JsonValue]:
    return {"rule": rule, "message": message}


def _rules(*rules: dict[str, JsonValue]) -> ConfigDict:
    return ConfigDict(json_schema_extra={RULES: list(rules)})


class ApiModel(BaseModel):
    """camelCase outside, frozen inside; unknown fields are those of a newer version and are left alone."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, validate_by_name=True)


class PolicyRef(ApiModel):
    """Which policy artifact may serve. Without it, whichever the client has loaded."""

    name: str = Field(default="", max_length=253, description="Name of the artifact, for people.")
    version: str = Field(default="", max_length=63, description="Its version, for people.")
    digest: str | None = Field(
        default=None,
        pattern=DIGEST_PATTERN,
        description="Digest of the artifact's manifest. Any other is then not served: answers are neutral.",
    )


class Targets(ApiModel):
    """Where the objectives adapt by themselves. What is not given is not adapted to."""

    sla_violations: Ratio | None = Field(
        default=None, description="Share of ended pods over their SLA above which the weight of qos grows."
    )
    power_watts: float | None = Field(
        default=None, ge=1, le=1e9, description="Power of all nodes above which the weight of energy grows."
    )


class Objectives(ApiModel):
    """Weights of the four terms of the reward; they count relative to their sum."""

    model_config = _rules(
        _rule(
            "self.util + self.qos + self.energy + self.penalty > 0.0",
            "at least one of util, qos, energy and penalty must be above 0",
        )
    )

    util: Ratio = Field(default=0.25, description="Weight of stranded capacity.")
    qos: Ratio = Field(default=0.40, description="Weight of slowdown beyond the SLA.")
    energy: Ratio = Field(default=0.25, description="Weight of power above deep idle.")
    penalty: Ratio = Field(
        default=0.10, description="Weight of pending pods, evictions, OOM kills and money."
    )
    targets: Targets = Targets()

    @model_validator(mode="after")
    def _some_weight(self) -> Self:
        if self.util + self.qos + self.energy + self.penalty <= 0:
            raise ValueError("at least one of util, qos, energy and penalty must be above 0")
        return self

    def weights(self) -> ObjectiveWeights:
        """The weights, summing to 1."""
        total = self.util + self.qos + self.energy + self.penalty
        return ObjectiveWeights(
            self.util / total, self.qos / total, self.energy / total, self.penalty / total
        )


class LabelExpression(ApiModel):
    """One line of a label selector."""

    key: str = Field(min_length=1, max_length=317)
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = Field(default=(), max_length=64)


class Selector(ApiModel):
    """A Kubernetes label selector. Every line must hold; an empty one selects everything."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[LabelExpression, ...] = Field(default=(), max_length=64)


class PodSelection(ApiModel):
    """Which pods a policy is for: those that pass every selector that is given."""

    pod_selector: Selector | None = None
    namespace_selector: Selector | None = Field(
        default=None, description="On the labels of the pod's namespace."
    )
    scheduler_names: tuple[str, ...] = Field(
        default=(), max_length=16, description="Values of spec.schedulerName; empty: every scheduler's pods."
    )


class QuotaAction(ApiModel):
    """Bounds of changing one resource's requests (and limits) before a pod is scheduled."""

    enabled: bool = False
    lowest: float = Field(default=0.5, ge=0.1, le=1, description="Smallest factor on the request.")
    highest: float = Field(default=1.0, ge=1, le=4, description="Largest factor on the request.")
    usage_margin: float = Field(
        default=0.2, ge=0, le=2, description="Never below the app's known use times one plus this."
    )


class AcceleratorAction(ApiModel):
    """Bounds of changing the MIG layout of idle GPUs."""

    enabled: bool = False
    timeout_seconds: int = Field(default=900, ge=60, le=7200, description="For the MIG manager to report.")
    rest_seconds: int = Field(default=600, ge=0, le=86400, description="Between two layout changes.")


class ReplicasAction(ApiModel):
    """Bounds of scaling labelled workloads, once each frame."""

    model_config = _rules(_rule("self.lowest <= self.highest", "lowest may not exceed highest"))

    enabled: bool = False
    lowest: int = Field(default=1, ge=1, le=10000)
    highest: int = Field(default=10, ge=1, le=10000)
    target_ratio: float = Field(default=0.6, ge=0.05, le=1, description="Of CPU use to CPU request.")
    largest_step: int = Field(default=2, ge=1, le=100, description="Replicas a frame.")
    frame_seconds: int = Field(default=60, ge=10, le=3600)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.lowest > self.highest:
            raise ValueError("lowest may not exceed highest")
        return self


class RoutesAction(ApiModel):
    """Bounds of moving HTTPRoute backend weights, once each slot."""

    enabled: bool = False
    lowest: int = Field(default=1, ge=1, le=50, description="Weight, of 100, that every backend keeps.")
    largest_step: int = Field(default=10, ge=1, le=100, description="Change of one weight in a slot.")
    slot_seconds: int = Field(default=10, ge=1, le=600)


class MigrationAction(ApiModel):
    """Bounds of evicting pods of low priority from hot or fragmented nodes."""

    enabled: bool = False
    per_hour: int = Field(default=6, ge=1, le=600)
    highest_priority: int = Field(
        default=0, ge=-(2**31), le=1_000_000_000, description="Pods above it are never moved."
    )
    hot_ratio: float = Field(
        default=0.9, ge=0.5, le=1, description="CPU use / allocatable that makes a node hot."
    )


class Actions(ApiModel):
    """What Shoal may do beyond scoring. All off by default."""

    cpu_quota: QuotaAction = QuotaAction()
    memory_quota: QuotaAction = QuotaAction()
    accelerator: AcceleratorAction = AcceleratorAction()
    replicas: ReplicasAction = ReplicasAction()
    routes: RoutesAction = RoutesAction()
    migration: MigrationAction = MigrationAction()


class PrivacyBudget(ApiModel):
    """The most that this cluster gives away; of several policies the strictest holds.

    The trainer adds as much noise as this needs, if that is more than the federation's. Once it is spent the
    client keeps serving and receiving and ships nothing more.
    """

    model_config = _rules(
        _rule(
            "self.unit == oldSelf.unit", "the unit is what was spent so far was counted in; it cannot change"
        ),
        _rule("self.delta == oldSelf.delta", "epsilon was spent at this delta; it cannot change"),
    )

    epsilon: float = Field(ge=0.001, le=1000)
    delta: float = Field(1e-6, ge=1e-12, le=0.01)
    clip_norm: float | None = Field(
        default=None, ge=1e-6, le=1e6, description="Largest norm that a unit's gradient may be clipped to."
    )
    unit: Literal["transition"] = Field(default="transition", description="The record protected.")


class Fallback(ApiModel):
    """When an answer is neutral instead of the policy's."""

    timeout_ms: int = Field(
        default=100,
        ge=1,
        le=5000,
        description="Deadline of one answer; keep it below the stanza's httpTimeout.",
    )
    max_staleness_seconds: int = Field(
        default=60,
        ge=1,
        le=3600,
        description="Age of the watch caches beyond which answers are neutral. A quiet watch proves itself "
        "every 40 s: with less than 50 a quiet cluster is neutral now and then.",
    )
    on_error: OnError = Field(
        default=OnError.NEUTRAL, description="The filter verb's answer when a decision fails."
    )


class Exploration(ApiModel):
    """Deliberate variation among good nodes, which makes experience worth learning from."""

    epsilon: float = Field(
        default=0.0,
        ge=0,
        le=0.2,
        description="Share of served decisions whose node is drawn by the policy's softmax.",
    )


class Drift(ApiModel):
    """When inputs leave their public bounds, or stray from what the policy has seen since it was loaded."""

    max_clipped_ratio: Ratio = Field(
        default=0.2,
        description="Share of one observation's features at or beyond their bounds that is still served.",
    )
    max_shift: float = Field(
        default=0.25,
        ge=0,
        le=10,
        description="Population stability index over the window that counts as drift.",
    )
    window_decisions: int = Field(default=1000, ge=100, le=100000)


class Guardrails(ApiModel):
    """When a policy is rolled back to Shadow by itself.

    A figure of served pods must be more than this many times the shadow baseline's, on at least `minPods`
    pods of each within the window.
    """

    enabled: bool = True
    window_seconds: int = Field(default=600, ge=10, le=86400)
    cooldown_seconds: int = Field(
        default=1800, ge=10, le=604800, description="A rollback holds for so long, or until the spec changes."
    )
    min_pods: int = Field(default=30, ge=1, le=100000)
    pending_seconds: Multiple = Field(default=2.0, description="p99 of the time from creation to binding.")
    failed_scheduling: Multiple = Field(default=2.0, description="Failed attempts per pod.")
    evictions: Multiple = Field(default=2.0, description="Evicted, preempted or OOM-killed pods per pod.")
    sla_violations: Multiple = Field(default=2.0, description="Share of ended pods over their SLA.")


class SchedulingPolicySpec(ApiModel):
    """How Shoal treats the pods that `selector` selects."""

    model_config = _rules(
        _rule(
            "self.mode != 'Canary' || has(self.canaryPercent)",
            "mode Canary needs canaryPercent, the share of owners to serve",
        ),
        _rule(
            "!has(oldSelf.privacy) || has(self.privacy)",
            "a privacy budget cannot be taken away, only changed",
        ),
    )

    mode: Mode = Field(
        Mode.SHADOW, description="Off is the kill switch. Shadow decides and records but answers neutrally."
    )
    canary_percent: int | None = Field(
        default=None, ge=0, le=100, description="Share of owners served in mode Canary."
    )
    priority: int = Field(
        default=0,
        ge=-1000,
        le=1000,
        description="Of several policies that select a pod the highest holds, then the oldest, then by name.",
    )
    policy_ref: PolicyRef | None = None
    objectives: Objectives = Objectives()
    selector: PodSelection = PodSelection()
    actions: Actions = Actions()
    privacy: PrivacyBudget | None = None
    fallback: Fallback = Fallback()
    score_scale: int = Field(
        default=10,
        ge=1,
        le=1000,
        description="Scores run from 0 to this; the scheduler multiplies by weight times 10.",
    )
    exploration: Exploration = Exploration()
    drift: Drift = Drift()
    guardrails: Guardrails = Guardrails()

    @model_validator(mode="after")
    def _canary_has_percent(self) -> Self:
        if self.mode is Mode.CANARY and self.canary_percent is None:
            raise ValueError("mode Canary needs canaryPercent, the share of owners to serve")
        return self


class FederationMembershipSpec(ApiModel):
    """That this cluster takes part in a federation, and how far."""

    model_config = _rules(
        _rule(
            "self.clusterName == oldSelf.clusterName",
            "the privacy ledger is kept under this name; make another membership instead",
        ),
    )

    cluster_name: str = Field(
        min_length=1,
        max_length=63,
        pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        description="Name in the federation.",
    )
    super_link: str = Field(
        default="", max_length=253, description="host:port of the federation's SuperLink, for people."
    )
    suspended: bool = Field(default=False, description="Receive policies but train and ship nothing.")


Spec = TypeVar("Spec", bound=ApiModel)


def read_spec(model: type[Spec], kind: str, obj: Mapping[str, Any]) -> Spec:
    """The spec of an API object.

    Raises:
        InputError: names the object, the first wrong field and the remedy.
    """
    try:
        return model.model_validate(obj.get("spec") or {}, by_alias=True, by_name=False)
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        path = ".".join(("spec", *(str(part) for part in details["loc"])))
        name = (obj.get("metadata") or {}).get("name") or "?"
        problem = details["msg"].removeprefix("Value error, ")
        remedy = "see docs/operations/scheduling-policy.md"
        raise InputError(f"{kind} {name}", path, problem, remedy) from None
