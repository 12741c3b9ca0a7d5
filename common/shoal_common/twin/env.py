# SPDX-License-Identifier: Apache-2.0
"""`VectorEnv`: many twins stepped as one batch, in the manner of Gymnasium's vector environments.

A step places each cluster's current pod and runs it on to its next decision. The step's reward is the
integral of the cluster's reward rates since the last decision; the reward that a learner uses is the
*difference* reward of the decision, which is final when the decision closes (`rewards`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from shoal_common.cluster import F64, P_CLASS, P_SLA, Cluster
from shoal_common.errors import InputError
from shoal_common.observation import FC, FN, FP, FT, Observation
from shoal_common.reward import ObjectiveWeights
from shoal_common.twin.batch import TwinConfig, build_state
from shoal_common.twin.scenarios import Scenario, links
from shoal_common.twin.scoring import KUBE_136, SCORER_IDS
from shoal_common.twin.state import (
    D_END,
    D_SLOW_INTEGRAL,
    D_START,
    D_STATUS,
    E_CLOSED,
    E_LOO,
    E_OWN,
    FINISHED,
    KILLED,
    PENDING,
    RUNNING,
    T_ARRIVAL,
    V_CLOCK,
    V_CPU,
    V_DECISIONS,
    V_EVICTIONS,
    V_NODES,
    V_OOM,
    V_POD,
    V_PODS,
    V_TOTAL,
    V_USED_SECONDS,
    V_WATT_SECONDS,
    State,
)
from shoal_common.twin.step import (
    Action,
    View,
    act_range,
    choose_range,
    lookahead_range,
    observe_range,
    run_range,
    step_range,
)

RewardForm = Literal["leave-one-out", "measurement"]
REWARD_SCALE = 4.0  # a node-sized effect becomes of order 1
REWARD_BOUND = 6.0  # public clip of each term
SPLIT_FROM = 16  # clusters from which a batch is worth two threads
CORES = len(os.sched_getaffinity(0))


@cache
def _other_core() -> ThreadPoolExecutor:
    """The second thread; the first one is the caller's."""
    return ThreadPoolExecutor(1, "twin")


os.register_at_fork(after_in_child=_other_core.cache_clear)  # threads do not survive a fork


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one cluster did over an episode. Latency in seconds, power in watts, the rest ratios."""

    composite: float  # J: time mean of the scalarised cluster reward
    terms: tuple[float, float, float, float]
    utilisation: float  # CPU in use / allocatable, time mean
    p99_latency_s: float  # of finished batch pods, from arrival to end
    p99_service_slowdown: float
    sla_violations: float  # share of started pods slower than their SLA, waiting included
    watts_per_node: float
    success: float  # share of arrived pods that run or have finished
    pods: int
    evictions: int
    oom_kills: int


def scorer_id(name: str) -> int:
    """The id of a compiled scorer.

    Raises:
        InputError: there is no compiled scorer of that name.
    """
    if name not in SCORER_IDS:
        raise InputError("scorer", "name", f"{name!r} is unknown", f"choose one of {', '.join(SCORER_IDS)}")
    return SCORER_IDS[name]


class VectorEnv:
    """B virtual clusters as one batch."""

    def __init__(
        self,
        scenarios: list[Scenario],
        seeds: list[int],
        weights: ObjectiveWeights | None = None,
        config: TwinConfig | None = None,
        scorers: tuple[str, ...] = (),
        arrivals: list[F64] | None = None,
    ) -> None:
        """Build B clusters; `scorers` are compiled scorers whose scores the observations carry (`plugin`).

        `arrivals` are each cluster's pods instead of those that its seed gives (`build_state`).
        """
        if len(scenarios) != len(seeds) or not scenarios:
            raise InputError(
                "VectorEnv", "seeds", "must be one for each scenario", "give as many seeds as scenarios"
            )
        self.scenarios, self.seeds = scenarios, seeds
        self.config = config or TwinConfig()
        self.weights = weights or ObjectiveWeights()
        self.scorers = np.array([scorer_id(name) for name in scorers], dtype=np.int32)
        self._w64 = self.weights.array().astype(np.float64)
        self._w = np.repeat(self.weights.array()[None], len(scenarios), axis=0)
        self._full = np.ones((len(scenarios), 2), dtype=np.float32)
        self._arrivals = arrivals
        self.state: State = build_state(scenarios, seeds, self.config, arrivals)

    def __len__(self) -> int:
        return len(self.scenarios)

    @property
    def nodes(self) -> int:
        """Padded number of nodes N."""
        return int(self.state.node.shape[1])

    @property
    def done(self) -> npt.NDArray[np.bool_]:
        """Clusters whose episode is over, bool[B]."""
        return self.state.env[:, V_POD] < 0

    @property
    def clock(self) -> F64:
        """Simulated seconds, f64[B]."""
        return self.state.env[:, V_CLOCK]

    @property
    def decision(self) -> npt.NDArray[np.int64]:
        """Number of decisions taken so far, i64[B]: the row that the current decision will have."""
        return self.state.env[:, V_DECISIONS].astype(np.int64)

    def reset(self) -> Observation:
        """Begin the same episode again."""
        self.state = build_state(self.scenarios, self.seeds, self.config, self._arrivals)
        return self.observe()

    def observe(self) -> Observation:
        """The current decisions as a batch."""
        view = self._view()
        self._each(observe_range, self.state, view, self.scorers, self._w)
        return self._observation(view)

    def act(self, actions: npt.NDArray[np.int64], quotas: npt.NDArray[np.float32] | None = None) -> None:
        """Place the current pods and run to the next decisions.

        Actions are i64[B] nodes, -1 abstains; quotas f32[B, 2] as fractions of what was asked, default 1.
        """
        self._each(act_range, self.state, self._action(actions, quotas), KUBE_136)

    def step(
        self, actions: npt.NDArray[np.int64], quotas: npt.NDArray[np.float32] | None = None
    ) -> tuple[Observation, npt.NDArray[np.float32], npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Act and observe: observation, reward f32[B, 4] since the last decision, terminated, truncated.

        A cluster never terminates; it is truncated at the end of its episode.
        """
        view, reward = self._view(), np.empty((len(self), 4), dtype=np.float32)
        action = self._action(actions, quotas)
        self._each(step_range, self.state, action, KUBE_136, view, self.scorers, reward)
        truncated = self.done
        return self._observation(view), reward, np.zeros_like(truncated), truncated

    def _view(self) -> View:
        batch, nodes = len(self), self.nodes
        return View(
            node=np.empty((batch, nodes, FN), dtype=np.float32),
            pair=np.empty((batch, nodes, FP), dtype=np.float32),
            task=np.empty((batch, FT), dtype=np.float32),
            ctx=np.empty((batch, FC), dtype=np.float32),
            mask=np.empty((batch, nodes, 1), dtype=np.bool_),
            plugin=np.empty((batch, nodes, len(self.scorers)), dtype=np.float32),
        )

    def _observation(self, view: View) -> Observation:
        return Observation(view.node, view.pair, view.task, view.ctx, self._w, view.mask, view.plugin)

    def _action(self, actions: npt.NDArray[np.int64], quotas: npt.NDArray[np.float32] | None) -> Action:
        """The action in the types that the kernels are compiled for."""
        node = np.ascontiguousarray(actions, dtype=np.int64)
        full = self._full if quotas is None else np.ascontiguousarray(quotas, dtype=np.float32)
        return Action(node, full, self._w)

    def _each(self, kernel: Callable[..., None], *args: object) -> None:
        """Run a range kernel over all clusters, large batches in two parts on two cores."""
        batch = len(self)
        if batch < SPLIT_FROM or CORES < 2:
            kernel(*args, 0, batch)
            return
        middle = batch * 9 // 16  # the other thread wakes up some 50 us later
        second = _other_core().submit(kernel, *args, middle, batch)
        try:
            kernel(*args, 0, middle)
        finally:
            second.result()

    def rewards(
        self, form: RewardForm = "leave-one-out"
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        """Difference rewards f32[B, D, 4] of all decisions so far, and which are closed, bool[B, D]."""
        begin = E_LOO if form == "leave-one-out" else E_OWN
        raw = self.state.decisions[:, :, begin : begin + 4]
        taken = np.arange(raw.shape[1]) < self.decision[:, None]
        closed = (self.state.decisions[:, :, E_CLOSED] == 1) & taken
        return self._scaled(raw), closed

    def lookahead(self, believed: bool = False) -> npt.NDArray[np.float32]:
        """What a one-step model expects of each candidate, f32[B, N, 4] on the scale of the rewards."""
        out = np.zeros((len(self), self.nodes, 4))
        self._each(lookahead_range, self.state, int(believed), out)
        return self._scaled(out)

    def _scaled(self, integrals: F64) -> npt.NDArray[np.float32]:
        """Discounted integrals [B, ..., 4] as rewards: of order 1 for a node-sized effect, clipped."""
        horizon = self.config.horizon
        norm = horizon.tau * (1 - np.exp(-horizon.seconds / horizon.tau))
        scale = REWARD_SCALE * self.state.env[:, V_NODES, None, None] / norm
        clipped: F64 = np.clip(integrals * scale, -REWARD_BOUND, REWARD_BOUND)
        return clipped.astype(np.float32)

    def choose(self, mix: dict[str, float]) -> npt.NDArray[np.int64]:
        """What a mix of compiled scorers (name -> share) picks for the current pods, i64[B]."""
        ids, shares = self._mix(mix)
        out = np.empty(len(self), dtype=np.int64)
        self._each(choose_range, self.state, ids, self._w64, shares, out)
        return out

    def run(self, mix: dict[str, float], decisions: int = 2**31) -> None:
        """Run under a mix of compiled scorers for so many decisions a cluster, or to the end."""
        ids, shares = self._mix(mix)
        self._each(run_range, self.state, ids, self._w64, shares, decisions)

    def _mix(self, mix: dict[str, float]) -> tuple[npt.NDArray[np.int32], F64]:
        ids = np.array([scorer_id(name) for name in mix], dtype=np.int32)
        shares = np.array(list(mix.values()), dtype=np.float64)
        return ids, shares / shares.sum()

    def cluster(self, b: int) -> Cluster:
        """Cluster b as views into the batch."""
        count, s = int(self.state.env[b, V_NODES]), self.state
        classes = [c for c, number in self.scenarios[b].nodes for _ in range(number)]
        return Cluster(
            names=tuple(f"{self.scenarios[b].name}-{i:04d}" for i in range(count)),
            node=s.node[b, :count],
            use=s.use[b, :count],
            gpu_free=s.gpu[b, :count],
            zone_free=s.zone[b, :count],
            zone=(np.arange(count) % 3).astype(np.int32),
            rack=(np.arange(count) // 16).astype(np.int32),
            links=np.stack([links(c) for c in classes]),
            accelerator=tuple(c.accelerator for c in classes),
            software=tuple(c.labels for c in classes),
        )

    def outcome(self, b: int) -> Outcome:
        """What cluster b has done so far."""
        env, pods = self.state.env[b], self.state.pods[b, : int(self.state.env[b, V_PODS])]
        seconds = max(float(env[V_CLOCK]), 1e-9)
        terms = env[V_TOTAL : V_TOTAL + 4] / seconds
        arrived = pods[:, T_ARRIVAL] <= env[V_CLOCK]
        status = pods[:, D_STATUS]
        ended = np.where(np.isfinite(pods[:, D_END]), pods[:, D_END], env[V_CLOCK])
        ran = np.maximum(ended - pods[:, D_START], 1e-9)
        started = arrived & ((status == RUNNING) | (status == FINISHED))
        waited = pods[:, D_START] - pods[:, T_ARRIVAL]
        slow = pods[:, D_SLOW_INTEGRAL] / ran + np.where(started, waited / ran, 0.0)
        batch = (status == FINISHED) & (pods[:, P_CLASS] != 0)
        service = started & (pods[:, P_CLASS] == 0)
        latency = pods[batch, D_END] - pods[batch, T_ARRIVAL]
        good = int(np.count_nonzero(started & (status != KILLED) & (status != PENDING)))
        return Outcome(
            composite=float(terms @ self._w64),
            terms=(float(terms[0]), float(terms[1]), float(terms[2]), float(terms[3])),
            utilisation=float(env[V_USED_SECONDS] / seconds / env[V_CPU]),
            p99_latency_s=float(np.percentile(latency, 99)) if len(latency) else 0.0,
            p99_service_slowdown=float(np.percentile(slow[service], 99)) if service.any() else 0.0,
            sla_violations=float(np.mean(slow[started] > pods[started, P_SLA])) if started.any() else 0.0,
            watts_per_node=float(env[V_WATT_SECONDS] / seconds / env[V_NODES]),
            success=good / max(1, int(np.count_nonzero(arrived))),
            pods=int(np.count_nonzero(arrived)),
            evictions=int(env[V_EVICTIONS]),
            oom_kills=int(env[V_OOM]),
        )
