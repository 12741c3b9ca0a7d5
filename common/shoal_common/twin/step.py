# SPDX-License-Identifier: Apache-2.0
"""The kernels that step, observe and run a batch of twins, each over the clusters [begin, end).

Clusters share nothing, so disjoint ranges may run in different threads and give the same bits.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shoal_common.cluster import F32, F64, I32, Mask, feasible_mask, fits
from shoal_common.features import encode_context, encode_node, encode_pairs, encode_task
from shoal_common.kernels import lean_kernel
from shoal_common.twin.engine import advance
from shoal_common.twin.placement import apply_quota, changed, place
from shoal_common.twin.scoring import RANDOM, choose, lookahead_terms, score_nodes, uniform
from shoal_common.twin.state import (
    V_CHARGE,
    V_CLOCK,
    V_NODES,
    V_PENDING,
    V_PERIOD,
    V_POD,
    V_PRICE,
    V_STEP,
    W_WEIGHTS,
    State,
)

I64 = npt.NDArray[np.int64]


class View(NamedTuple):
    """The arrays of an Observation that the kernels fill, in its shapes."""

    node: F32
    pair: F32
    task: F32
    ctx: F32
    mask: Mask
    plugin: F32


class Action(NamedTuple):
    """What is to be done: node i64[B], quotas f32[B, 2], the weights f32[B, 4] of who decides instead."""

    node: I64
    quotas: F32
    w: F32


@lean_kernel
def start(s: State) -> None:
    """Power up every cluster and run it to its first decision."""
    for b in range(len(s.env)):
        for n in range(s.node.shape[1]):
            if n < int(s.env[b, V_NODES]):
                changed(s, b, n)
            else:
                encode_node(s.node[b, n], s.use[b, n], s.gpu[b, n], s.zone[b, n], s.features[b, n])
        advance(s, b)


@lean_kernel
def set_weights(s: State, b: int, w: F32) -> None:
    """Bring the weights of cluster b into its scratch space."""
    for j in range(4):
        s.work[b, W_WEIGHTS, j] = w[b, j]


@lean_kernel
def act_one(s: State, b: int, action: Action, scorer: int) -> None:
    """Place cluster b's current pod and run on to its next decision.

    An action of -1 abstains: the compiled scorer decides. An infeasible action is refused likewise, so no
    policy can overcommit a node.
    """
    p = int(s.env[b, V_POD])
    for j in range(4):
        s.env[b, V_STEP + j] = 0.0
    if p < 0:
        return
    n, pod = int(action.node[b]), s.pods[b, p]
    apply_quota(pod, action.quotas[b, 0], action.quotas[b, 1])
    if n < 0 or n >= int(s.env[b, V_NODES]) or not fits(s.node[b, n], s.use[b, n], s.gpu[b, n], pod):
        apply_quota(pod, 1.0, 1.0)
        set_weights(s, b, action.w)
        n = choose(s, b, p, scorer, s.work[b, W_WEIGHTS])
    place(s, b, p, n)
    advance(s, b)


@lean_kernel
def observe_one(s: State, b: int, out: View, scorers: I32, w: F32) -> None:
    """Fill the rows of cluster b; a finished cluster has an empty mask and zeros."""
    p = int(s.env[b, V_POD])
    mask, plugin = out.mask[b, :, 0], out.plugin[b]
    plugin[:] = 0.0
    if p < 0:
        mask[:] = False
        out.node[b], out.pair[b], out.task[b], out.ctx[b] = 0.0, 0.0, 0.0, 0.0
        return
    env, node, use, gpu, pod = s.env[b], s.node[b], s.use[b], s.gpu[b], s.pods[b, p]
    features, rows = s.features[b], out.node[b]
    for n in range(len(features)):
        for i in range(features.shape[1]):
            rows[n, i] = features[n, i]
    encode_pairs(node, use, s.zone[b], pod, out.pair[b])
    encode_task(pod, out.task[b])
    phase = 2.0 * math.pi * env[V_CLOCK] / env[V_PERIOD]
    encode_context(node, use, env[V_PENDING], env[V_PRICE], env[V_CHARGE], phase, out.ctx[b])
    feasible_mask(node, use, gpu, pod, mask)
    set_weights(s, b, w)
    for k in range(len(scorers)):
        fill_plugin(s, b, p, scorers[k], mask, s.work[b, W_WEIGHTS], plugin[:, k])


@lean_kernel
def fill_plugin(s: State, b: int, p: int, scorer: int, mask: Mask, w: F64, out: F32) -> None:
    """Fill out[N] with a compiled scorer's scores of the feasible nodes."""
    found, score, count = s.found[b], s.score[b], 0
    for n in range(len(mask)):
        if mask[n]:
            found[count] = n
            count += 1
    score_nodes(s, b, p, scorer, w, count)
    for i in range(count):
        out[found[i]] = uniform(s.random, b) if scorer == RANDOM else score[i]


@lean_kernel
def act_range(s: State, action: Action, scorer: int, begin: int, end: int) -> None:
    """`act_one` for each cluster."""
    for b in range(begin, end):
        act_one(s, b, action, scorer)


@lean_kernel
def observe_range(s: State, out: View, scorers: I32, w: F32, begin: int, end: int) -> None:
    """`observe_one` for each cluster."""
    for b in range(begin, end):
        observe_one(s, b, out, scorers, w)


@lean_kernel
def step_range(
    s: State, action: Action, scorer: int, out: View, scorers: I32, reward: F32, begin: int, end: int
) -> None:
    """`act_one`, then `observe_one` for each cluster; reward[B, 4] since the last decision."""
    for b in range(begin, end):
        act_one(s, b, action, scorer)
        for j in range(4):
            reward[b, j] = s.env[b, V_STEP + j]
        observe_one(s, b, out, scorers, action.w)


@lean_kernel
def run_range(s: State, scorers: I32, w: F64, shares: F64, limit: int, begin: int, end: int) -> None:
    """Run clusters under a mix of compiled scorers (shares sum to 1) for `limit` decisions or to the end."""
    for b in range(begin, end):
        for _ in range(limit):
            p = int(s.env[b, V_POD])
            if p < 0:
                break
            place(s, b, p, choose(s, b, p, pick(s.random, b, scorers, shares), w))
            advance(s, b)


@lean_kernel
def pick(random: npt.NDArray[np.uint64], b: int, scorers: I32, shares: F64) -> int:
    """Draw one of the scorers by its share."""
    if len(scorers) == 1:
        return int(scorers[0])
    u = uniform(random, b)
    for k in range(len(scorers) - 1):
        u -= shares[k]
        if u < 0.0:
            return int(scorers[k])
    return int(scorers[-1])


@lean_kernel
def choose_range(s: State, scorers: I32, w: F64, shares: F64, out: I64, begin: int, end: int) -> None:
    """Fill out[B] with what a mix of compiled scorers picks for the current pods, -1 without one."""
    for b in range(begin, end):
        p = int(s.env[b, V_POD])
        out[b] = choose(s, b, p, pick(s.random, b, scorers, shares), w) if p >= 0 else -1


@lean_kernel
def lookahead_range(s: State, which: int, out: F64, begin: int, end: int) -> None:
    """Fill out[B, N, 4] with the lookahead terms of every feasible node (0 elsewhere)."""
    for b in range(begin, end):
        out[b] = 0.0
        p = int(s.env[b, V_POD])
        for n in range(int(s.env[b, V_NODES]) if p >= 0 else 0):
            if fits(s.node[b, n], s.use[b, n], s.gpu[b, n], s.pods[b, p]):
                lookahead_terms(s, b, p, n, which, out[b, n])
