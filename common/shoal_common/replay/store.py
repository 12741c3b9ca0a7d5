# SPDX-License-Identifier: Apache-2.0
"""Replay: a ring of one cluster's decisions at its true number of nodes, in float16.

Rewards are stored as vectors and become scalars when sampled, under the weights w of that moment
(dynamic-weights MORL: Abels et al. 2019, arXiv:1809.07803). A sample does not carry all N nodes: the taken
candidate and K - 1 other feasible ones, drawn uniformly without replacement, stand for the set.

For private training a `Snapshot` freezes the eligible rows of a round; a Poisson draw names them by their
ids in it, and ids beyond its length are padding that contributes nothing. A row keeps its place in the ring
whether it is eligible or not, so one record more or less never decides whether another is there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal_common.kernels import kernel
from shoal_common.observation import FC, FN, FP, FT
from shoal_common.replay.batch import F32, Batch, Decisions
from shoal_common.transition import Transitions

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ReplayConfig:
    """Settings of a replay; every number is public, none may be fitted to the records."""

    capacity: int = 50_000
    """Decisions kept; the oldest go first."""
    profiles: int = 1
    """Candidates per node, P."""
    reward_scale: float = 1.0
    """Multiplies the weighed reward; from the twin, since one fitted to the records would couple them."""
    reward_clip: float = 6.0
    """Bound of the scaled reward: opening an empty node costs many times the typical decision."""
    w_concentration: float | None = None
    """None: every sample has the given w. Else w ~ Dirichlet(concentration * w) per sample: public, and what
    conditioning the networks on w needs."""
    next_decision: bool = True
    """False leaves out obs_t1 (gamma 0 reads none)."""


@kernel
def _draw_candidates(
    mask: npt.NDArray[np.bool_], rows: I64, taken: I64, uniforms: npt.NDArray[np.float64]
) -> tuple[I64, I64]:
    """Choose K nodes a row: the taken one first (-1: none), then feasible others without replacement.

    mask [S, N, P], rows [M], taken [M], uniforms [M, K] -> nodes [M, K], how many are real [M]. A partial
    Fisher-Yates shuffle over the feasible nodes. Places without a node repeat node 0.
    """
    num_nodes, profiles = mask.shape[1], mask.shape[2]
    size, places = uniforms.shape
    chosen, count = np.zeros((size, places), np.int64), np.zeros(size, np.int64)
    pool = np.empty(num_nodes, np.int64)
    for m in range(size):
        feasible = 0
        for n in range(num_nodes):
            usable = False
            for p in range(profiles):
                usable = usable or mask[rows[m], n, p]
            if usable and n != taken[m]:
                pool[feasible] = n
                feasible += 1
        first = 0
        if taken[m] >= 0:
            chosen[m, 0] = taken[m]
            first = 1
        others = min(places - first, feasible)
        for j in range(others):
            swap = j + min(int(uniforms[m, first + j] * (feasible - j)), feasible - j - 1)
            pool[j], pool[swap] = pool[swap], pool[j]
            chosen[m, first + j] = pool[j]
        count[m] = first + others
    return chosen, count


class Replay:
    """A ring of decisions; only eligible rows (see `Transitions.eligible`) can be sampled."""

    def __init__(self, config: ReplayConfig, num_nodes: int) -> None:
        size, p = config.capacity, config.profiles
        self.config, self.num_nodes = config, num_nodes
        self._node = np.zeros((size, num_nodes, FN), np.float16)
        self._pair = np.zeros((size, num_nodes, FP), np.float16)
        self._task = np.zeros((size, FT), np.float16)
        self._ctx = np.zeros((size, FC), np.float16)
        self._mask = np.zeros((size, num_nodes, p), np.bool_)
        self._action = np.zeros(size, np.int64)
        self._quota = np.zeros((size, 2), np.float32)
        self._reward = np.zeros((size, 4), np.float32)
        self._next = np.full(size, -1, np.int64)
        self._eligible = np.zeros(size, np.bool_)
        self._ids: I64 | None = None
        self._written = 0

    def __len__(self) -> int:
        return min(self._written, self.config.capacity)

    @property
    def overwritten(self) -> int:
        """Decisions that have left the ring."""
        return self._written - len(self)

    @property
    def eligible(self) -> I64:
        """Rows that may be sampled, oldest first, wherever in the ring they lie."""
        if self._ids is None:
            size = len(self)
            age = (self._written - size + np.arange(size)) % self.config.capacity
            self._ids = age[self._eligible[age]]
        return self._ids

    def add(self, transitions: Transitions) -> None:
        """Append D decisions [D, num_nodes, ...]; beyond the capacity the oldest are overwritten."""
        if (
            transitions.node.shape[1:] != (self.num_nodes, FN)
            or transitions.mask.shape[2] != self._mask.shape[2]
        ):
            raise ValueError(
                f"a replay of {self.num_nodes} nodes x {self._mask.shape[2]} profiles was given "
                f"{transitions.node.shape[1]} nodes x {transitions.mask.shape[2]} profiles"
            )
        capacity = self.config.capacity
        skip = max(0, len(transitions) - capacity)
        new = slice(skip, None)
        eligible = np.zeros(len(transitions), np.bool_)
        eligible[transitions.eligible] = True
        self._written += skip
        rows = (self._written + np.arange(len(transitions) - skip)) % capacity
        following = transitions.next_index[new]
        self._node[rows], self._pair[rows] = transitions.node[new], transitions.pair[new]
        self._task[rows], self._ctx[rows] = transitions.task[new], transitions.ctx[new]
        self._mask[rows], self._action[rows] = transitions.mask[new], transitions.action[new]
        self._quota[rows], self._reward[rows] = transitions.quota[new], transitions.reward[new]
        self._next[rows] = np.where(following >= 0, (following - skip + self._written) % capacity, -1)
        self._eligible[rows] = eligible[new]
        self._written += len(rows)
        self._ids = None

    def sample(
        self,
        rng: np.random.Generator,
        batch: int,
        candidates: int,
        w: F32,
        rows: I64 | None = None,
    ) -> Batch:
        """Draw `batch` eligible rows uniformly, or take exactly `rows`, with `candidates` nodes each.

        w f32[4] weighs the reward. An empty replay, or empty `rows`, gives an empty batch.
        """
        if rows is None:
            ids = self.eligible
            rows = ids[rng.integers(0, len(ids), batch)] if len(ids) else np.empty(0, np.int64)
        weights = self._weights(rng, len(rows), w)
        profiles = self.config.profiles
        node, profile = np.divmod(self._action[rows], profiles)
        reward = (self._reward[rows] * weights).sum(-1) * np.float32(self.config.reward_scale)
        clip = np.float32(self.config.reward_clip)
        return Batch(
            obs_t=self._decisions(rng, rows, node, candidates, weights),
            action=profile,
            quota=self._quota[rows],
            reward=np.clip(reward, -clip, clip),
            discount=np.ones(len(rows), np.float32),
            obs_t1=self._following(rng, rows, candidates, weights) if self.config.next_decision else None,
        )

    def snapshot(self) -> Snapshot:
        """Freeze the eligible rows, all of them: a cap would let one record displace another."""
        return Snapshot(self, self.eligible)

    def _weights(self, rng: np.random.Generator, size: int, w: F32) -> F32:
        if self.config.w_concentration is None:
            return np.broadcast_to(w.astype(np.float32), (size, 4)).copy()
        return rng.dirichlet(self.config.w_concentration * w + 1e-6, size).astype(np.float32)

    def _following(self, rng: np.random.Generator, rows: I64, candidates: int, weights: F32) -> Decisions:
        free = np.full(len(rows), -1, np.int64)
        return self._decisions(rng, self._next[rows], free, candidates, weights)

    def _decisions(
        self, rng: np.random.Generator, rows: I64, taken: I64, candidates: int, weights: F32
    ) -> Decisions:
        places = min(candidates, self.num_nodes)
        nodes, count = _draw_candidates(self._mask, rows, taken, rng.random((len(rows), places)))
        flat = rows[:, None] * self.num_nodes + nodes  # [M, K]
        real = np.arange(places) < count[:, None]
        return Decisions(
            node=self._node.reshape(-1, FN)[flat].astype(np.float32),
            pair=self._pair.reshape(-1, FP)[flat].astype(np.float32),
            task=self._task[rows].astype(np.float32),
            ctx=self._ctx[rows].astype(np.float32),
            w=weights,
            mask=self._mask.reshape(-1, self.config.profiles)[flat] & real[..., None],
        )


class Snapshot:
    """A frozen choice of rows for the Poisson draws of one round."""

    def __init__(self, replay: Replay, rows: I64) -> None:
        self._replay, self.rows = replay, rows
        self._overwritten = replay.overwritten

    def __len__(self) -> int:
        return len(self.rows)

    def sample(self, rng: np.random.Generator, ids: I64, candidates: int, w: F32) -> Batch:
        """Take the units `ids`; padding (ids >= len) is left out; may be empty."""
        if self._replay.overwritten != self._overwritten:
            raise RuntimeError("the replay overwrote rows of a frozen snapshot: add between rounds only")
        rows = self.rows[ids[ids < len(self.rows)]]
        return self._replay.sample(rng, len(rows), candidates, w, rows=rows)
