# SPDX-License-Identifier: Apache-2.0
"""What is told of a decision: its best candidates, and what each feature of the chosen node did.

The effect of a feature is how far the chosen node's lead over the best other candidate shrinks when that one
feature is replaced by its mean over the other candidates, in units of the policy's score. Features act
together, so effects do not add up to the lead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal_client.experience.records import F32, I64, Seen
from shoal_common.observation import (
    CONTEXT_FEATURES,
    NODE_FEATURES,
    PAIR_FEATURES,
    TASK_FEATURES,
    Feature,
    Observation,
)
from shoal_common.reward import ObjectiveWeights
from shoal_common.scorers.base import Scorer

Features = dict[str, float]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that was scored."""

    rank: int  # from 1, by score
    node: str
    score: float | None  # the policy's logit
    propensity: float | None
    chosen: bool  # by the policy
    taken: bool  # by the scheduler
    features: Features


@dataclass(frozen=True, slots=True)
class Effect:
    """What one feature of the chosen node did for its lead."""

    feature: str
    value: float
    others: float  # mean over the other candidates
    effect: float


@dataclass(frozen=True, slots=True)
class Applied:
    """The policy in force for the pod, now."""

    name: str  # of the SchedulingPolicy; empty: the client's own default
    mode: str
    serves: bool  # whether its scores reach kube-scheduler
    why: str  # why not, where they do not


@dataclass(frozen=True, slots=True)
class Decided:
    """One decision."""

    source: str  # "recorded", or "now": what would be decided
    at: str
    asked_by: str  # extender, grpc, watched; empty for now
    mode: str  # it was made in
    digest: str
    attempt: int
    outcome: str
    reason: str
    reward: dict[str, float] | None = None
    chosen: str = ""  # node, empty where the policy abstained
    taken: str = ""  # node, empty where it was not bound
    feasible: int = 0
    candidates: int = 0
    lead: float | None = None  # of the chosen node over the best other
    top: Sequence[Candidate] = ()
    task: Features = field(default_factory=dict)
    context: Features = field(default_factory=dict)
    effects: Sequence[Effect] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """Nodes that cannot take the pod now, for one and the same reason."""

    reason: str
    nodes: int
    examples: Sequence[str]


@dataclass(frozen=True, slots=True)
class LiveValue:
    """A live feature of a node as it was last sampled; see docs/live-features.md."""

    feature: str
    value: float
    unit: str
    age_seconds: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything that `shoal client explain` tells."""

    pod: str
    uid: str
    node: str
    phase: str
    policy: Applied
    decision: Decided | None
    refusals: Sequence[Refused]
    idle_milli_gpu: int = 0  # of the cluster, now
    unusable_milli_gpu: float = 0.0  # of it: the FGD metric, what typical pods of the cluster cannot use
    measured: str = ""  # the node that `live` is about: the pod's, else the chosen one
    live: Sequence[LiveValue] = ()  # what is known of it now, where Prometheus was asked

    def json(self) -> dict[str, Any]:
        """As a document."""
        return asdict(self)


def with_candidates(
    told: Decided, seen: Seen, chosen: int, most: int, scorer: Scorer | None = None
) -> Decided:
    """Add what was seen to a decision.

    Args:
        told: the decision without its candidates.
        seen: its candidates.
        chosen: by the policy, as flat n * P + p; -1 none.
        most: candidates told, beside the chosen and the taken one.
        scorer: the policy that decided, for the effects; None where it is not at hand.
    """
    node = chosen // seen.mask.shape[1] if chosen >= 0 else -1
    nodes = [node, seen.names.index(told.taken) if told.taken in seen.names else -1]
    scores = np.where(seen.mask, seen.logits, -np.inf).max(-1)
    scores = np.where(np.isnan(scores), -np.inf, scores)
    feasible = np.flatnonzero(seen.mask.any(-1))
    order = sorted(feasible.tolist(), key=lambda n: (-scores[n], n not in nodes, n))
    top = [_candidate(rank, n, seen, scores, nodes) for rank, n in enumerate(order, start=1)]
    others, found = feasible[feasible != node], []
    if scorer is not None and node >= 0 and len(others):
        found = sorted(effects(scorer, seen, node, others), key=lambda e: -abs(e.effect))
    return replace(
        told,
        chosen=seen.names[node] if node >= 0 else "",
        feasible=len(order),
        candidates=len(seen),
        lead=_lead(scores, node) if node >= 0 else None,
        top=[c for c in top if c.rank <= most or c.chosen or c.taken],
        task=_named(TASK_FEATURES, seen.task),
        context=_named(CONTEXT_FEATURES, seen.ctx),
        effects=found,
    )


def effects(scorer: Scorer, seen: Seen, node: int, others: I64) -> list[Effect]:
    """The effect of each feature of a node on its lead over the candidates `others`."""
    table = [*NODE_FEATURES, *PAIR_FEATURES]
    values = np.concatenate([seen.node, seen.pair], axis=1).astype(np.float32)  # [N, FN + FP]
    mean = values[others].mean(0)
    batch = np.repeat(values[None], len(table) + 1, axis=0)  # the last one as it is
    for i in range(len(table)):
        batch[i, node, i] = mean[i]
    size, split = len(batch), len(NODE_FEATURES)

    def repeated(array: npt.NDArray[Any]) -> F32:
        return np.repeat(array.astype(np.float32)[None], size, axis=0)

    obs = Observation(
        node=np.ascontiguousarray(batch[..., :split]),
        pair=np.ascontiguousarray(batch[..., split:]),
        task=repeated(seen.task),
        ctx=repeated(seen.ctx),
        w=repeated(ObjectiveWeights().array()),
        mask=np.repeat(seen.mask[None], size, axis=0),
        plugin=np.zeros((size, len(values), 0), np.float32),
    )
    logits = np.where(obs.mask, scorer.score(obs).logits, -np.inf).max(-1)  # [FN + FP + 1, N]
    leads = logits[:, node] - logits[:, others].max(-1)
    return [
        Effect(f.name, float(values[node, i]), float(mean[i]), float(leads[-1] - leads[i]))
        for i, f in enumerate(table)
    ]


def _lead(scores: F32, node: int) -> float | None:
    rest = np.delete(scores, node)
    lead = float(scores[node] - rest.max(initial=-np.inf))
    return lead if math.isfinite(lead) else None


def _candidate(rank: int, n: int, seen: Seen, scores: F32, nodes: Sequence[int]) -> Candidate:
    chance = float(seen.propensity[n].sum())
    features = _named(NODE_FEATURES, seen.node[n]) | _named(PAIR_FEATURES, seen.pair[n])
    return Candidate(
        rank,
        seen.names[n],
        float(scores[n]) if np.isfinite(scores[n]) else None,
        chance if math.isfinite(chance) else None,
        n == nodes[0],
        n == nodes[1],
        features,
    )


def _named(table: Sequence[Feature], values: npt.NDArray[Any]) -> Features:
    return {f.name: round(float(v), 4) for f, v in zip(table, values, strict=True)}
