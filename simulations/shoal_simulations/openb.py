# SPDX-License-Identifier: Apache-2.0
"""Replay of an openb pod list onto an openb node list, by the published experiment's rules.

Pods arrive one by one and never leave; demand goes to 130 % of the GPU capacity; a pod that fits nowhere is
lost. After each arrival the allocation and the fragmentation are noted. Source: Weng, Yang et al., "Beware of
Fragmentation", USENIX ATC'23, and its simulator. The published order of pods and of equal nodes comes from
Go's random numbers and is read from a file; without one, `drawn_order` draws its own by the same rules.
"""

from __future__ import annotations

import time
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shoal_common.accelerators.sharing import MILLI
from shoal_common.errors import InputError
from shoal_common.kernels import kernel
from shoal_common.scorers import fgd
from shoal_common.scorers.fragmentation import PodSpecs, typical_pods
from shoal_simulations.traces.base import NodeTrace, PodTrace

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

DEMAND = 1.3
"""GPU demand of the arriving pods relative to the capacity (the published inflation ratio)."""

Columns = dict[str, float]


@dataclass(frozen=True, slots=True)
class Order:
    """Pod rows by arrival, [A], with repetitions; node rows in tie order, [N]."""

    pods: I64
    nodes: I64


@dataclass(frozen=True, slots=True)
class Cluster:
    """A node list and a pod list ready to replay: nodes in tie order, pods by specification."""

    state: fgd.State
    spec_of_pod: I64  # [P]
    order: Order
    total_gpu_milli: int


@dataclass(frozen=True, slots=True)
class Replay:
    """At each of A arrivals: demand so far, GPU in use and fragmentation after it, node row or -1, devices.

    Amounts are in milli-GPU; devices are bits.
    """

    arrived_milli: I64
    used_milli: I64
    fragmentation_milli: F64
    node: I64
    devices: I64
    total_gpu_milli: int
    seconds: float


Chooser = Callable[[int], tuple[int, int]]
"""Where a pod of a specification goes now: (node in tie order, devices as bits), or (-1, 0) for nowhere."""

NodeScorer = Callable[[Cluster, int, npt.NDArray[np.bool_]], F64]
"""A scorer from outside: (cluster with its live state, specification, feasible [N]) -> scores [N].

Nodes stand in tie order; scores of infeasible nodes are ignored; of equal scores the first wins. The pod
takes the tightest sufficient device, or the lowest free ones."""


def load_order(path: Path, key: str, nodes: NodeTrace, pods: PodTrace) -> Order:
    """Read `<key>_pods` (pod rows by arrival) and `<key>_nodes` (each node row's rank) from an .npz.

    Raises:
        InputError: the file or the key is missing, or the numbers do not belong to these lists.
    """
    arrivals, ranks = _arrays(path, key)
    if len(arrivals) == 0 or arrivals.min() < 0 or arrivals.max() >= len(pods):
        raise InputError(
            str(path), f"{key}_pods", "names rows the pod list lacks", "use the order's own list"
        )
    if not np.array_equal(np.sort(ranks), np.arange(len(nodes))):
        raise InputError(
            str(path), f"{key}_nodes", "does not rank this node list", "use the order's own list"
        )
    return Order(arrivals, np.argsort(ranks))


def _arrays(path: Path, key: str) -> tuple[I64, I64]:
    if path.is_file() and not zipfile.is_zipfile(path):
        raise InputError(str(path), "--order", "cannot be read: it is no archive", "give an .npz file")
    try:
        with np.load(path) as archive:
            if f"{key}_pods" not in archive or f"{key}_nodes" not in archive:
                known = ", ".join(
                    sorted(n.removesuffix("_pods") for n in archive.files if n.endswith("_pods"))
                )
                raise InputError(str(path), "--key", f"there is no order {key!r}", f"use one of {known}")
            arrivals, ranks = archive[f"{key}_pods"], archive[f"{key}_nodes"]
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(str(path), "--order", f"cannot be read ({error})", "give an .npz file") from error
    for name, array in ((f"{key}_pods", arrivals), (f"{key}_nodes", ranks)):
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise InputError(str(path), name, "is no list of whole numbers", "write one row number each")
    return arrivals.astype(np.int64), ranks.astype(np.int64)


def drawn_order(nodes: NodeTrace, pods: PodTrace, seed: int) -> Order:
    """Own order from a seed: shuffled pods, then clones drawn uniformly until demand would pass 130 %.

    Above 130 % pods are dropped at random instead. As in the published simulator the last clone is tested
    with its share of one device, not of all of them.
    """
    rng = np.random.default_rng(seed)
    demand = pods.gpu_milli * pods.num_gpu
    limit = DEMAND * int(nodes.gpus.sum()) * MILLI
    rows = list(rng.permutation(len(pods)))
    total = int(demand.sum())
    while total > limit and rows:
        total -= int(demand[rows.pop(int(rng.integers(len(rows))))])
    while total > 0:
        clone = int(rng.integers(len(pods)))
        if total + pods.gpu_milli[clone] > limit:
            break
        rows.append(clone)
        total += int(demand[clone])
    return Order(np.array(rows, dtype=np.int64), rng.permutation(len(nodes)).astype(np.int64))


def _model_bits(spec: str, models: tuple[str, ...]) -> int:
    """The accepted models of a |-list as bits; a list of unknown models only accepts none of the nodes."""
    accepted = {name for name in spec.split("|") if name}  # openb repeats names
    if not accepted:
        return 0
    return sum(1 << models.index(name) for name in accepted if name in models) or 1 << len(models)


def prepare(nodes: NodeTrace, pods: PodTrace, order: Order) -> Cluster:
    """Bring two lists into the form of the kernels; typical pods come from the whole pod list.

    An order of fewer nodes leaves the others out.
    """
    bits = np.array([_model_bits(spec, nodes.models) for spec in pods.gpu_specs], dtype=np.int64)
    table = np.stack([pods.cpu_milli, pods.memory_mib, pods.gpu_milli, pods.num_gpu, pods.gpu_spec], axis=1)
    rows, spec_of_pod, counts = np.unique(table, axis=0, return_inverse=True, return_counts=True)
    names = [pods.gpu_specs[i] for i in rows[:, 4]]
    cpu, memory, milli, number = (np.ascontiguousarray(rows[:, i]) for i in range(4))
    specs = PodSpecs(cpu, memory, milli, number, models=bits[rows[:, 4]])
    model = np.where(nodes.model >= 0, 1 << np.maximum(nodes.model, 0), 0)
    row = order.nodes
    empty = fgd.empty_nodes(nodes.cpu_milli[row], nodes.memory_mib[row], nodes.gpus[row], model[row])
    state = fgd.start(empty, specs, typical_pods(specs, names, counts))
    return Cluster(state, spec_of_pod.astype(np.int64).ravel(), order, int(nodes.gpus[row].sum()) * MILLI)


class _Arrivals(NamedTuple):
    """What goes into a run: the specification of each arrival [A] and two draws each, [A, 2]."""

    spec: I64
    draws: F64


class _Outcome(NamedTuple):
    """What comes out of a run, each [A]: node in tie order or -1, devices as bits, fragmentation after it."""

    node: I64
    devices: I64
    fragmentation: F64


def _empty(arrivals: int) -> _Outcome:
    return _Outcome(
        np.full(arrivals, -1, dtype=np.int64), np.zeros(arrivals, dtype=np.int64), np.zeros(arrivals)
    )


@kernel
def _run(
    policy: int, state: fgd.State, cache: fgd.ScoreCache, arrivals: _Arrivals, outcome: _Outcome
) -> None:
    """All arrivals under one policy."""
    for a in range(arrivals.spec.shape[0]):
        s = arrivals.spec[a]
        node, devices = fgd.decide(policy, state, cache, s, arrivals.draws[a])
        outcome.node[a], outcome.devices[a] = node, devices
        if node >= 0:
            fgd.place(state, s, node, devices)
        total = 0.0
        for i in range(state.nodes.fragmentation.shape[0]):
            total += state.nodes.fragmentation[i]
        outcome.fragmentation[a] = total


def replay(cluster: Cluster, policy: str, seed: int = 0) -> Replay:
    """Run all arrivals under one of `fgd.POLICIES`; `seed` matters to `random` only. Changes the cluster.

    The seconds do not count compilation.
    """
    spec = cluster.spec_of_pod[cluster.order.pods]
    draws = np.random.default_rng(seed).random((len(spec), 2))
    outcome, code, cache = _empty(len(spec)), fgd.POLICIES.index(policy), _cache(cluster)
    _run(code, cluster.state, cache, _Arrivals(spec[:0], draws[:0]), _empty(0))  # compiles
    begin = time.perf_counter()
    _run(code, cluster.state, cache, _Arrivals(spec, draws), outcome)
    return _result(cluster, outcome, time.perf_counter() - begin)


def replay_chosen(cluster: Cluster, choose: Chooser) -> Replay:
    """Run all arrivals, each placed where `choose` says. Changes the cluster."""
    state = cluster.state
    arrivals = cluster.spec_of_pod[cluster.order.pods].tolist()
    outcome = _empty(len(arrivals))
    begin = time.perf_counter()
    for a, s in enumerate(arrivals):
        node, devices = choose(s)
        outcome.node[a], outcome.devices[a] = node, devices
        if node >= 0:
            fgd.place(state, s, node, devices)
        outcome.fragmentation[a] = state.nodes.fragmentation.sum()
    return _result(cluster, outcome, time.perf_counter() - begin)


def by_policy(cluster: Cluster, policy: str, seed: int = 0) -> Chooser:
    """The choice of one of `fgd.POLICIES`; `seed` matters to `random` only."""
    rng, code, cache = np.random.default_rng(seed), fgd.POLICIES.index(policy), _cache(cluster)

    def choose(s: int) -> tuple[int, int]:
        return fgd.decide(code, cluster.state, cache, s, rng.random(2))

    return choose


def by_scorer(cluster: Cluster, scorer: NodeScorer) -> Chooser:
    """The choice of a scorer from outside."""

    def choose(s: int) -> tuple[int, int]:
        mask = fgd.feasible_nodes(cluster.state, s)
        if not mask.any():
            return -1, 0
        node = int(np.where(mask, scorer(cluster, s, mask), -np.inf).argmax())
        return node, fgd.choose_devices(fgd.BEST_FIT, cluster.state, s, node, 0.0)

    return choose


def _cache(cluster: Cluster) -> fgd.ScoreCache:
    return fgd.empty_cache(len(cluster.state.specs.cpu_milli), len(cluster.state.nodes.version))


def _result(cluster: Cluster, outcome: _Outcome, seconds: float) -> Replay:
    specs = cluster.state.specs
    demand = (specs.gpu_milli * specs.num_gpu)[cluster.spec_of_pod[cluster.order.pods]]
    placed = outcome.node >= 0
    return Replay(
        arrived_milli=demand.cumsum(),
        used_milli=np.where(placed, demand, 0).cumsum(),
        fragmentation_milli=outcome.fragmentation,
        node=np.where(placed, cluster.order.nodes[outcome.node], -1),
        devices=outcome.devices,
        total_gpu_milli=cluster.total_gpu_milli,
        seconds=seconds,
    )


def columns(result: Replay) -> tuple[Columns, Columns]:
    """The published table's columns: the mean over the arrivals whose arrived % rounds to the column.

    Roundings as in the published analysis: allocation to 0.01 before and after the mean, fragmentation after
    it. A column that no arrival hits takes its two neighbours' arrivals.
    """
    total = result.total_gpu_milli
    arrived = np.round(result.arrived_milli / (total // MILLI) / 10)
    used = np.array([round(x, 2) for x in (result.used_milli / (total // MILLI) / 10).tolist()])
    allocation: Columns = {}
    fragmentation: Columns = {}
    for column in range(round(100 * DEMAND) + 1):
        rows = arrived == column
        if not rows.any():
            rows = abs(arrived - column) <= 1
        if rows.any():
            allocation[str(column)] = float(np.round(used[rows].mean(), 2))
            milli = result.fragmentation_milli[rows].mean()
            fragmentation[str(column)] = float(np.round(100 * milli / MILLI / (total // MILLI), 2))
    return allocation, fragmentation
