# SPDX-License-Identifier: Apache-2.0
"""The one decision path: cluster and pod -> observation -> scores -> choice, live, in twins, in gates.

`observe` fills the features of one decision from a cluster's tables; `Embeddings` keeps features and tokens
of its nodes and encodes again only those that changed, in one batch; `decide` asks a scorer and takes the
best candidate, or draws one where it explores. A policy that cannot decide abstains (-1): the mask is empty,
or something is not finite.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, final

import numpy as np
import numpy.typing as npt

from shoal_common.cluster import F32, F64, MAX_GPUS, MAX_ZONES, NODE_COLUMNS, USE_COLUMNS, Mask
from shoal_common.features import encode_context, encode_nodes, encode_pairs, encode_task
from shoal_common.kube.profile import DEFAULT_FILTERS, refuse
from shoal_common.kube.snapshot import Snapshot
from shoal_common.kube.verdict import Verdict
from shoal_common.observation import FC, FN, FP, FT, Observation
from shoal_common.pods import PodRecord
from shoal_common.reward import ObjectiveWeights
from shoal_common.scorers.artifact import ArtifactScorer
from shoal_common.scorers.base import (
    Scorer,
    Scores,
    draw_candidate,
    select,
    taken_quotas,
)
from shoal_common.tables import fill, pod_row

DAY_SECONDS = 86_400.0
POLICY = "Policy"
"""Under this name a policy's scores stand beside those of kube-scheduler's plugins."""

I64 = npt.NDArray[np.int64]


class Tables(Protocol):
    """The numbers of N nodes, as `Cluster` holds them."""

    @property
    def node(self) -> F64:
        """What each node is, [N, NODE_COLUMNS]."""

    @property
    def use(self) -> F64:
        """What is on it now, [N, USE_COLUMNS]."""

    @property
    def gpu_free(self) -> F64:
        """Milli-GPU left of each device, [N, MAX_GPUS]."""

    @property
    def zone_free(self) -> F64:
        """Millicores and bytes left in each NUMA zone, [N, MAX_ZONES, 2]."""


class TokenScorer(Scorer, Protocol):
    """A scorer whose node encoder can run ahead of the decision."""

    def encode(self, node: F32) -> F32:
        """Encode nodes [B, N, FN] into tokens [B, N, d]."""

    def score_tokens(self, tokens: F32, obs: Observation) -> Scores:
        """Score with tokens that were encoded before."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a decision knows beside nodes and pod."""

    pending: float = 1.0  # pods that wait for a node
    price: float = 1.0  # energy price relative to its mean
    charge: float = 1.0  # state of charge of the site's battery, 1 without
    phase: float = 0.0  # time of day, radians

    @classmethod
    def now(cls, pending: float) -> Context:
        """That of a live cluster at this moment; what its energy costs and stores is not known."""
        return cls(pending, phase=2.0 * math.pi * (time.time() % DAY_SECONDS) / DAY_SECONDS)


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided for a batch of B observations."""

    scores: Scores
    action: I64  # [B], flat candidate n * P + p, -1 where the policy abstains
    quota: F32  # [B, 2], CPU and memory request as a fraction of what was asked
    propensities: F64 | None = None  # [B, N * P], None for a choice that was not drawn


def observe(
    tables: Tables,
    pod: F64,
    mask: Mask,
    w: F32,
    context: Context | None = None,
    rows: I64 | None = None,
    features: F32 | None = None,
) -> Observation:
    """Fill the features of one decision, a batch of one.

    Args:
        tables: the whole cluster, which the context features are about.
        pod: the pod's row, f64[POD_COLUMNS].
        mask: candidates, bool[N, P].
        w: objective weights, f32[4].
        context: what is known beside nodes and pod; None is an average hour with one pod waiting.
        rows: the N candidates' rows in the tables; None takes every row.
        features: features of every row, f32[rows, FN], as `Embeddings` keeps them; None encodes them now.
    """
    about = context or Context()
    node, use, zone = tables.node, tables.use, tables.zone_free
    if rows is not None:
        node, use, zone = (table.take(rows, 0) for table in (node, use, zone))
    if features is None:
        devices = tables.gpu_free if rows is None else tables.gpu_free.take(rows, 0)
        encoded = np.empty((len(node), FN), np.float32)
        encode_nodes(node, use, devices, zone, encoded)
    else:
        encoded = features if rows is None else features.take(rows, 0)
    obs = Observation(
        node=encoded[None],
        pair=np.empty((1, len(node), FP), np.float32),
        task=np.empty((1, FT), np.float32),
        ctx=np.empty((1, FC), np.float32),
        w=w[None],
        mask=mask[None],
        plugin=np.zeros((1, len(node), 0), np.float32),
    )
    encode_pairs(node, use, zone, pod, obs.pair[0])
    encode_task(pod, obs.task[0])
    encode_context(tables.node, tables.use, about.pending, about.price, about.charge, about.phase, obs.ctx[0])
    return obs


def decide(
    scorer: Scorer,
    obs: Observation,
    exploration: float | None = None,
    rng: np.random.Generator | None = None,
) -> Decision:
    """Score a batch and choose: the best candidate, the first of equals.

    With `exploration` so large a share of the choices is drawn with `rng` from softmax(logits) instead, and
    every candidate's probability is given: (1 - exploration) * (best) + exploration * softmax.
    """
    scores = scorer.score(obs)
    action = select(scores, obs.mask)
    if exploration is None or rng is None:
        return Decision(scores, action, taken_quotas(scores, action))
    batch, sound = np.arange(len(action)), action >= 0
    mask = obs.mask.reshape(len(action), -1) & sound[:, None]
    chances = exploration * _softmax(scores.logits, mask)
    chances[batch[sound], action[sound]] += 1.0 - exploration
    drawn = draw_candidate(chances, mask, rng)
    return Decision(scores, drawn, taken_quotas(scores, drawn), chances)


def _softmax(logits: F32, mask: Mask) -> F64:
    """Probabilities [B, C] over the masked candidates; zeros where there is none."""
    flat = np.where(mask, logits.reshape(len(mask), -1).astype(np.float64), -np.inf)
    top = flat.max(-1, keepdims=True, initial=-np.inf)
    weight: F64 = np.exp(flat - np.where(np.isfinite(top), top, 0.0))
    chances: F64 = weight / np.maximum(weight.sum(-1, keepdims=True), 1e-300)
    return chances


@final
class Embeddings:
    """Features [rows, FN] and tokens [rows, d] of every node of a cluster, kept up to date."""

    def __init__(self, scorer: TokenScorer) -> None:
        self._scorer = scorer
        self.features: F32 = np.zeros((0, FN), np.float32)
        self.tokens: F32 = np.zeros((0, 0), np.float32)

    def update(self, tables: Tables, changed: I64) -> None:
        """Encode the changed rows again; all of them when the tables are longer than before."""
        if len(tables.node) != len(self.features):
            self.features = np.zeros((len(tables.node), FN), np.float32)
            encode_nodes(tables.node, tables.use, tables.gpu_free, tables.zone_free, self.features)
            self.tokens = self._scorer.encode(self.features[None])[0].copy()
        elif len(changed):
            fresh = np.empty((len(changed), FN), np.float32)
            node, use = tables.node[changed], tables.use[changed]
            encode_nodes(node, use, tables.gpu_free[changed], tables.zone_free[changed], fresh)
            self.features[changed] = fresh
            self.tokens[changed] = self._scorer.encode(fresh[None])[0]

    def at(self, rows: I64 | None = None) -> Scorer:
        """A scorer of observations of these rows, every row when None, by the tokens as they are now."""
        tokens = self.tokens if rows is None else self.tokens[rows]
        return _Encoded(self._scorer, tokens[None])


@final
class _Encoded:
    """A scorer by given tokens [1, N, d]; whatever the observation's nodes are."""

    def __init__(self, scorer: TokenScorer, tokens: F32) -> None:
        self._scorer, self._tokens = scorer, tokens

    def score(self, obs: Observation) -> Scores:
        return self._scorer.score_tokens(self._tokens, obs)


class RecordTables(NamedTuple):
    """The tables of nodes known by their Kubernetes records alone."""

    node: F64
    use: F64
    gpu_free: F64
    zone_free: F64

    @classmethod
    def of(cls, snapshot: Snapshot) -> RecordTables:
        """Fill the tables of a snapshot's nodes, in their order."""
        size = len(snapshot.infos)
        tables = cls(
            np.zeros((size, NODE_COLUMNS)),
            np.zeros((size, USE_COLUMNS)),
            np.zeros((size, MAX_GPUS)),
            np.zeros((size, MAX_ZONES, 2)),
        )
        for n, info in enumerate(snapshot.infos):
            fill(info.node, info.pods, *(table[n] for table in tables))
        return tables


def snapshot_scorer(directory: Path) -> Callable[[Snapshot, PodRecord], Verdict]:
    """A policy artifact on Kubernetes records: what `shoal score --scorer DIRECTORY` runs.

    Nodes are filtered as kube-scheduler does, then scored by the artifact's logits; higher is better. On a
    live cluster the client fills the same features from measurements and from what it knows of pods' apps.

    Raises:
        InputError, SchemaMismatch: the artifact does not verify.
    """
    scorer = ArtifactScorer(directory)
    profiles, w = int(scorer.manifest["profiles"]), ObjectiveWeights().array()

    def evaluate(snapshot: Snapshot, pod: PodRecord) -> Verdict:
        refusals, feasible = refuse(DEFAULT_FILTERS, snapshot, pod)
        names = {info.name for info in feasible}
        mask = np.array([info.name in names for info in snapshot.infos], dtype=np.bool_)
        rows: dict[str, dict[str, float]] = {}
        if feasible:
            pending = sum(not p.node_name and not p.finished for p in snapshot.pods)
            candidates = np.repeat(mask[:, None], profiles, axis=1)
            tables, context = RecordTables.of(snapshot), Context(float(pending))
            logits = decide(scorer, observe(tables, pod_row(pod), candidates, w, context)).scores.logits
            best = logits[0].max(-1)
            rows = {info.name: {POLICY: float(best[n])} for n, info in enumerate(snapshot.infos) if mask[n]}
        return Verdict(
            feasible=tuple(rows),
            failures={name: refusal.reasons for name, refusal in refusals.items()},
            codes={name: refusal.code for name, refusal in refusals.items()},
            scores=rows,
            total={name: row[POLICY] for name, row in rows.items()},
        )

    return evaluate
