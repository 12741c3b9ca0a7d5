# SPDX-License-Identifier: Apache-2.0
"""What is kept of one decision: an attempt to place a pod, and its outcome.

A decision may see thousands of candidates; at most `KEPT` of them are kept. The taken one and the `BEST` of
the policy's scores always stay, the others are drawn uniformly without replacement. Given the kept set S,
each of its members could have been the taken one, so the propensities are conditioned on S (`Seen.reduced`):
a logged decision stays an exact sample of a choice among the kept candidates.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from shoal_common.observation import FC, FN, FP, FT, Observation

Floats = npt.NDArray[np.floating[Any]]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

KEPT: Final = 64  # candidates kept of one decision, C
BEST: Final = 5  # of them the best by the policy's scores
NAME_BYTES: Final = 8  # of a hashed name

Source = Literal["extender", "grpc", "watched"]
"""Who asked: a scheduler over HTTP, a scheduler's plugin over gRPC, or nobody (a bind was seen)."""
Mode = Literal["off", "shadow", "canary", "active"]

# how an attempt ended; the last four never had a node
SUCCEEDED, FAILED, OOM, EVICTED, PREEMPTED = "succeeded", "failed", "oom", "evicted", "preempted"
REJECTED, DELETED, RUNNING, INTERRUPTED = "rejected", "deleted", "running", "interrupted"
REFUSED, SUPERSEDED, GONE, LOST = "refused", "superseded", "gone", "lost"
OUTCOMES: Final = {
    SUCCEEDED: "the pod ended well",
    FAILED: "the pod failed by itself",
    OOM: "a container was killed for memory",
    EVICTED: "the pod was evicted: node pressure, a failed node, the Eviction API",
    PREEMPTED: "a pod of higher priority took its place",
    REJECTED: "the kubelet refused the pod: OutOfcpu, OutOfpods, NodeAffinity, TopologyAffinityError, ...",
    DELETED: "the pod was deleted while it ran",
    RUNNING: "the window is over and the pod runs on",
    INTERRUPTED: "part of the window was not watched: the client was down",
    REFUSED: "the policy had no say, or kube-scheduler found no node",
    SUPERSEDED: "a later attempt was made",
    GONE: "the pod was deleted before it was placed",
    LOST: "nothing was heard of the pod for too long",
}
COSTLY: Final = frozenset((OOM, EVICTED, PREEMPTED, REJECTED))
"""Outcomes that cost as much as an eviction in the twin."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The candidates of one decision. N candidates in memory, at most `KEPT` where it is stored.

    Features are float32 in memory and float16 where they come from disk; names are node names in memory and
    hashed with the local key (16 hex digits) where they come from disk.
    `propensity` sums to 1 over the candidates; NaN throughout where it is not known.
    """

    node: Floats  # [N, FN]
    pair: Floats  # [N, FP]
    task: Floats  # [FT]
    ctx: Floats  # [FC]
    mask: npt.NDArray[np.bool_]  # [N, P]
    logits: F32  # [N, P], the policy's scores; NaN where it gave none
    propensity: F32  # [N, P]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.node)

    @classmethod
    def of(
        cls,
        observation: Observation,
        names: Sequence[str],
        logits: F32 | None = None,
        propensities: F32 | None = None,
        row: int = 0,
    ) -> Seen:
        """Row `row` of an observation of N named candidates; logits and propensities [N, P] or None.

        It shares the observation's arrays, which are made anew for every decision and not changed after it.
        """
        mask = observation.mask[row]
        unknown = np.full(mask.shape, np.nan, np.float32)
        return cls(
            node=observation.node[row],
            pair=observation.pair[row],
            task=observation.task[row],
            ctx=observation.ctx[row],
            mask=mask,
            logits=unknown if logits is None else np.array(logits, np.float32).reshape(mask.shape),
            propensity=unknown
            if propensities is None
            else np.array(propensities, np.float32).reshape(mask.shape),
            names=tuple(names),
        )

    def reduced(self, taken: int, rng: np.random.Generator) -> tuple[Seen, int]:
        """Keep at most `KEPT` nodes and say where the taken candidate (flat n * P + p, -1 none) went.

        With n feasible nodes, C kept and B best: a member of the best leaves C - B places for draws out of
        n - B, any other one C - B - 1 out of n - B - 1. So P(S | a) is larger by (n - B) / (C - B) for the
        others, and P(a | S) is proportional to the propensity times that.
        """
        profiles = self.mask.shape[1]
        if len(self) <= KEPT:
            return self, taken
        feasible = np.flatnonzero(self.mask.any(-1))
        best = self._best(feasible)
        node = taken // profiles if taken >= 0 else -1
        first = best if node < 0 or node in best else np.append(best, node)
        pool = feasible[~np.isin(feasible, first)]
        drawn = rng.choice(pool, min(KEPT - len(first), len(pool)), replace=False)
        rows = np.sort(np.concatenate([first, drawn]))
        kept = self._take(rows)
        if len(feasible) > KEPT:
            weight = np.where(np.isin(rows, best), 1.0, (len(feasible) - len(best)) / (KEPT - len(best)))
            mass = kept.propensity * weight[:, None].astype(np.float32)
            kept = replace(kept, propensity=mass / mass.sum())
        return kept, -1 if taken < 0 else int(np.searchsorted(rows, node)) * profiles + taken % profiles

    def _best(self, feasible: I64) -> I64:
        """The nodes of the best scores among the feasible ones, at most `BEST`; none without scores."""
        scores = np.where(self.mask, self.logits, -np.inf)[feasible].max(-1, initial=-np.inf)
        if not np.isfinite(scores).all() or not len(feasible):
            return feasible[:0]
        return feasible[np.argsort(-scores, kind="stable")[:BEST]]

    def _take(self, rows: I64) -> Seen:
        return Seen(
            node=self.node[rows],
            pair=self.pair[rows],
            task=self.task,
            ctx=self.ctx,
            mask=self.mask[rows],
            logits=self.logits[rows],
            propensity=self.propensity[rows],
            names=tuple(self.names[n] for n in rows),
        )

    def pack(self, hashed: Sequence[bytes]) -> bytes:
        """As bytes for the store, with the names' hashes of `NAME_BYTES` each."""
        features = (part.astype(np.float16) for part in (self.node, self.pair, self.task, self.ctx))
        parts = (*features, self.mask, self.logits, self.propensity)
        head = np.array([len(self), self.mask.shape[1]], "<i4").tobytes()
        return zlib.compress(head + b"".join(part.tobytes() for part in parts) + b"".join(hashed), 1)

    @classmethod
    def unpack(cls, packed: bytes) -> Seen:
        """From `pack`; raises ValueError or zlib.error on damaged bytes."""
        raw = zlib.decompress(packed)
        size, profiles = (int(x) for x in np.frombuffer(raw, "<i4", 2))
        cursor = 8

        def part(kind: type, *shape: int) -> npt.NDArray[np.generic]:
            nonlocal cursor
            count = int(np.prod(shape))
            array: npt.NDArray[np.generic] = np.frombuffer(raw, kind, count, cursor).reshape(shape)
            cursor += array.nbytes
            return array

        arrays = {
            "node": part(np.float16, size, FN),
            "pair": part(np.float16, size, FP),
            "task": part(np.float16, FT),
            "ctx": part(np.float16, FC),
            "mask": part(np.bool_, size, profiles),
            "logits": part(np.float32, size, profiles),
            "propensity": part(np.float32, size, profiles),
        }
        names = tuple(raw[i : i + NAME_BYTES].hex() for i in range(cursor, len(raw), NAME_BYTES))
        if len(names) != size:
            raise ValueError(f"{len(names)} names of {size} candidates")
        return cls(**arrays, names=names)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """One attempt to place a pod, as it was decided. `id` counts up over the life of a store."""

    id: int
    uid: str  # of the pod
    attempt: int  # of this pod, from 1
    at: float  # seconds since the epoch; for readers only, no duration is computed from it
    source: Source
    scheduler: str
    mode: Mode
    policy: str  # digest; empty where no policy had a say
    tenant: str  # hashed with the local key
    app: str  # hashed with the local key
    pod: F64  # [POD_COLUMNS], what was known of the pod
    seen: Seen | None = None  # None: nothing was scored
    chosen: int = -1  # flat candidate the policy chose, -1 none
    quota: tuple[float, float] = (1.0, 1.0)  # CPU and memory request as a fraction of what was asked
    reason: str = ""  # why the attempt placed nothing, as far as the caller knows


@dataclass(frozen=True, slots=True)
class Result:
    """What became of an attempt. Times are the API's own (seconds since the epoch), 0 where not known."""

    outcome: str  # one of OUTCOMES
    reason: str = ""
    node: str = ""  # where the pod was bound; hashed where it comes from disk
    action: int = -1  # flat candidate that was bound, -1 where it was not among those seen
    propensity: float = float("nan")  # of that candidate under the logging policy; NaN: not known
    bound_at: float = 0.0
    started_at: float = 0.0
    ready_at: float = 0.0
    ended_at: float = 0.0
    reward: tuple[float, float, float, float] | None = None  # in the order of reward.TERMS; None: not known
    seconds: float = 0.0  # of the window that the reward covers
    watts: float = float("nan")  # mean power of the node over the window
    slowdown: float = float("nan")  # time it ran, relative to its app's mean
    sla_met: bool | None = None  # whether the slowdown stayed within what the pod allows
    learnable: bool = False  # False: nothing to learn from as a choice (a DaemonSet's pod, an unseen node)


@dataclass(frozen=True, slots=True)
class Stored:
    """A row of the store: a decision and, once it is closed, its result and its place in that order."""

    decision: DecisionRecord
    result: Result | None = None
    closed: int = 0
    final: bool = field(default=False)  # the pod has ended: nothing will be added any more
