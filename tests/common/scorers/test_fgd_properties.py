# SPDX-License-Identifier: Apache-2.0
"""After any sequence of placements and departures the caches equal a plain recomputation from scratch."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_common.scorers import fgd
from shoal_common.scorers.fragmentation import PodSpecs, TypicalPods, typical_pods

NODES = [
    (32_000, 400, 2, 1),
    (64_000, 800, 8, 2),
    (96_000, 300, 8, 2),
    (48_000, 500, 0, 0),
    (16_000, 90, 1, 4),
]
PODS = [
    (4_000, 10, 0, 0, 0),
    (8_000, 20, 300, 1, 0),
    (6_000, 20, 500, 1, 2),
    (12_000, 30, 1000, 1, 0),
    (24_000, 60, 1000, 2, 0),
    (64_000, 200, 1000, 8, 6),
    (12_000, 30, 1000, 1, 4),
]


def specs() -> PodSpecs:
    return PodSpecs(*(np.array(c, dtype=np.int64) for c in zip(*PODS, strict=True)))


def fresh() -> fgd.State:
    nodes = fgd.empty_nodes(*(np.array(c, dtype=np.int64) for c in zip(*NODES, strict=True)))
    counts = np.array([10, 30, 20, 25, 5, 2, 8], dtype=np.int64)
    return fgd.start(nodes, specs(), typical_pods(specs(), [""] * len(PODS), counts))


def plain_fragmentation(cpu: int, left: list[int], model: int, typical: TypicalPods) -> float:
    """The definition, without any trick."""
    total = 0.0
    for t in range(len(typical.frequency)):
        gpu, num, wanted = typical.gpu_milli[t], typical.num_gpu[t], typical.models[t]
        hosts = gpu > 0 and cpu >= typical.cpu_milli[t] and (wanted == 0 or wanted & model)
        if hosts and sum(x >= gpu for x in left) >= num:
            total += typical.frequency[t] * sum(x for x in left if x < gpu)
        else:
            total += typical.frequency[t] * sum(left)
    return total


def plain_gradient(cpu: int, left: list[int], node: int, s: int, typical: TypicalPods) -> tuple[int, int]:
    """FGD's score and devices by trying every choice."""
    pod_cpu, _, gpu, num, _ = PODS[s]
    model = NODES[node][3]
    if num == 1 and gpu < 1000:
        choices = [1 << d for d, x in enumerate(left) if x >= gpu]
    else:
        choices = [sum(1 << d for d in [d for d, x in enumerate(left) if x == 1000][:num])]
    before, best, chosen = plain_fragmentation(cpu, left, model, typical), -1.0, 0
    for choice in choices:
        after = [x - gpu if choice >> d & 1 else x for d, x in enumerate(left)]
        gain = before - plain_fragmentation(cpu - pod_cpu, after, model, typical)
        score = 100 / (1 + math.exp(-gain / 1000))
        if math.floor(score + 1e-9) > best:
            best, chosen = math.floor(score + 1e-9), choice
    return int(best), chosen


STEPS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, len(PODS) - 1)), min_size=1, max_size=60)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(STEPS, st.integers(0, len(fgd.POLICIES) - 1))
def test_incremental_equals_from_scratch(steps: list[tuple[int, int]], policy: int) -> None:
    state, rng = fresh(), np.random.default_rng(1)
    cache = fgd.empty_cache(len(PODS), len(NODES))
    running: list[tuple[int, int, int]] = []
    for action, s in steps:
        if action < 3 and running:
            fgd.remove(state, *running.pop(action % len(running)))
            continue
        node, devices = fgd.decide(policy, state, cache, s, rng.random(2))
        for n in range(len(NODES)):
            able = fgd.feasible(state, s, n)
            wanted = fgd.raw_score(policy, state, s, n) if able else fgd.INFEASIBLE
            assert cache.score[s, n] == wanted
        if node >= 0:
            fgd.place(state, s, node, devices)
            running.append((s, node, devices))
        _conserved(state, running)


def _conserved(state: fgd.State, running: list[tuple[int, int, int]]) -> None:
    """Free resources and F equal a recomputation from the running pods; nothing is over-allocated."""
    for n, (all_cpu, all_memory, gpus, model) in enumerate(NODES):
        cpu, memory, left = all_cpu, all_memory, [1000] * gpus
        for s, node, devices in running:
            if node == n:
                cpu, memory = cpu - PODS[s][0], memory - PODS[s][1]
                left = [x - PODS[s][2] if devices >> d & 1 else x for d, x in enumerate(left)]
        assert min([cpu, memory, *left]) >= 0
        assert (state.nodes.cpu_left[n], state.nodes.memory_left[n]) == (cpu, memory)
        assert state.nodes.gpu_left[n, :gpus].tolist() == left
        expected = plain_fragmentation(cpu, left, model, state.typical)
        assert math.isclose(state.nodes.fragmentation[n], expected, abs_tol=1e-9)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(STEPS)
def test_gradient_equals_trying_every_device(steps: list[tuple[int, int]]) -> None:
    state, cache = fresh(), fgd.empty_cache(len(PODS), len(NODES))
    for _, s in steps:
        for n, (_, _, gpus, _) in enumerate(NODES):
            if fgd.feasible(state, s, n) and PODS[s][3] > 0:
                left = state.nodes.gpu_left[n, :gpus].tolist()
                plain = plain_gradient(int(state.nodes.cpu_left[n]), left, n, s, state.typical)
                assert abs(fgd.fragmentation_gradient(state, s, n)[0] - plain[0]) <= 1
                if fgd.fragmentation_gradient(state, s, n)[0] == plain[0]:
                    assert fgd.fragmentation_gradient(state, s, n)[1] == plain[1]
        node, devices = fgd.decide(fgd.FGD, state, cache, s, np.zeros(2))
        if node >= 0:
            fgd.place(state, s, node, devices)
