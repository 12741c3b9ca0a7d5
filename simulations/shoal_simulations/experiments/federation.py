# SPDX-License-Identifier: Apache-2.0
"""Is the learning real, and is the federation? Every row and control, on the embedded fleet.

Each arm is a configuration of `shoal simulate`'s own run: the same ServerApp, ClientApp and trainer, in
process. Local-only is a federation of one cluster, with as many updates. Tuning used arrivals 8000.. and
training seeds below 100; what is reported uses arrivals 9000.. and training seeds from 100 on.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import track

from shoal_client.train import prepare_process
from shoal_common.errors import ShoalError
from shoal_common.gate import Interval, evaluate, interval
from shoal_common.learners.td3 import TD3
from shoal_common.twin.scenarios import Scenario
from shoal_simulations import engines
from shoal_simulations.evaluation import BASELINES, held_out
from shoal_simulations.fleet import Fleet, load_fleet
from shoal_simulations.run import flower_config
from shoal_simulations.virtual import Run

F64 = npt.NDArray[np.float64]
FIRST_SEED = 100
EPSILON_MOST, GAIN_LEAST, GAIN_LEAST_DP = 3.0, 10.0, 8.0


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is run."""

    training_seeds: int = 3
    scarce_seeds: int = 16
    held_out_seeds: int = 12
    updates: int = 400
    private_records: int = 48_000
    public_records: int = 4_000
    scarce: tuple[int, ...] = (300, 1_000)
    arms: tuple[str, ...] = ()  # all where empty


QUICK = Scale(1, 6, 8, 200, 12_000, 2_000, (300,), ("local only", "federated", "shuffled rewards"))


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to train, as differences from the embedded fleet."""

    name: str
    learning: Mapping[str, Any] = field(default_factory=dict)
    private: bool = False
    local: bool = False
    equal: bool = False


def arms(scale: Scale) -> tuple[Arm, ...]:
    """The arms of `learning is real`."""
    records = {"first_decisions": scale.public_records}
    every = (
        Arm("local only", records, local=True),
        Arm("federated", records),
        Arm("federated, DP", {"first_decisions": scale.private_records}, private=True),
        Arm(
            "pretrained, then DP",
            {"first_decisions": scale.private_records, "start": "pretrained"},
            private=True,
        ),
        Arm("wrong counterfactual", records | {"counterfactual_error": 0.3}),
        Arm("measurement only", records | {"reward": "measurement"}),
        Arm("shuffled rewards", records | {"reward": "shuffled"}),
        Arm("contextual bandit (gamma 0)", records | {"gamma": 0.0}),
        Arm("equal nodes", records, equal=True),
    )
    return tuple(arm for arm in every if not scale.arms or arm.name in scale.arms)


def scarce_arms(decisions: int, gamma: float = 0.9) -> tuple[Arm, Arm]:
    """Local and federated at so many logged decisions a cluster."""
    learning = {"first_decisions": decisions, "gamma": gamma}
    return Arm("local", learning, local=True), Arm("federated", learning)


def configured(fleet: Fleet, arm: Arm, scale: Scale) -> Fleet:
    """The fleet of one arm: its learning, its privacy, as many rounds as the updates need."""
    learning = fleet.learning.model_copy(update=dict(arm.learning))
    rounds = scale.updates // learning.updates_per_round
    privacy = fleet.privacy.model_copy(
        update={"enabled": arm.private, "units_public": max(scale.private_records, fleet.privacy.batch)}
    )
    federation = fleet.federation.model_copy(update={"rounds": rounds})
    update = {"learning": learning, "privacy": privacy, "federation": federation}
    return fleet.model_copy(update=update)


Judged = tuple[F64, float | None]
"""Gain over the default in percent, f64[clusters, held-out seeds], and the largest epsilon spent."""
Task = tuple[Fleet, int, bool, int]
"""Fleet, training seed, whether nodes are equal, number of held-out seeds."""


def train_and_judge(fleet: Fleet, seed: int, equal: bool, seeds: int) -> Judged:
    """Run one federation in process, then its final model on held-out arrivals of the fleet's clusters."""
    prepare_process()
    run = Run(fleet, seed, equal)
    with tempfile.TemporaryDirectory() as folder:
        outcome = engines.run(
            [{"cluster": cluster.name} for cluster in fleet.clusters],
            flower_config(run, Path(folder)),
            initial=run.initial().shared_state(),
        )
    if any(record.refused or record.void for record in outcome.history):
        raise ShoalError("a cluster was refused in a round: the arm would not be what it says")
    spent = [value for record in outcome.history for value in record.epsilon.values()]
    learner = run.learner()
    learner.load_shared({name: np.array(array) for name, array in outcome.arrays.items()})
    return Arena(run, held_out(seeds)).gain(learner), max(spent, default=None)


def _follow_parent() -> None:
    """End this worker when its parent is gone, however it went."""

    def wait() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def judge_all(tasks: Sequence[Task], what: str) -> list[Judged]:
    """Train and judge every task, one process a core, with a progress bar; the order is that of the tasks."""
    context = multiprocessing.get_context("spawn")
    console = Console(stderr=True)
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, mp_context=context, initializer=_follow_parent) as pool:
        done = pool.map(train_and_judge, *zip(*tasks, strict=True))
        return list(track(done, total=len(tasks), description=what, console=console))


def alone(fleet: Fleet) -> list[Fleet]:
    """The fleet as federations of one cluster each."""
    return [fleet.model_copy(update={"clusters": (cluster,)}) for cluster in fleet.clusters]


def judge_arms(
    fleet: Fleet, plan: Sequence[Arm], scale: Scale, seeds: Sequence[int], what: str
) -> tuple[list[F64], float | None]:
    """Train every arm: its gain f64[training seeds, clusters, held-out seeds], and the largest epsilon.

    A local arm trains one federation a cluster.
    """
    tasks: list[Task] = []
    for arm in plan:
        own = configured(fleet, arm, scale)
        parts = alone(own) if arm.local else [own]
        tasks += [(part, seed, arm.equal, scale.held_out_seeds) for seed in seeds for part in parts]
    judged = judge_all(tasks, what)
    done = iter([gain for gain, _ in judged])
    clusters = len(fleet.clusters)
    gains = []
    for arm in plan:
        size = clusters if arm.local else 1
        gains.append(np.array([np.concatenate([next(done) for _ in range(size)]) for _ in seeds]))
    return gains, max((e for _, e in judged if e is not None), default=None)


class Arena:
    """The held-out arrivals and kube-scheduler's default on them, against which everything is a gain."""

    def __init__(self, run: Run, seeds: Sequence[int]) -> None:
        self.run, self.seeds = run, seeds
        self.scenarios = run.scenarios()
        self.names = [s.name for s in self.scenarios]
        self._default = self._objective(self.scenarios, "kube@1.36")

    def _objective(self, where: Sequence[Scenario], policy: str | TD3) -> F64:
        found = evaluate(where, self.seeds, self.run.weights, policy)
        return np.array([[o.objective for o in found[s.name]] for s in where])

    def gain(self, policy: str | TD3) -> F64:
        """Gain over the default in percent, f64[clusters, seeds]."""
        return 100 * (self._objective(self.scenarios, policy) - self._default) / np.abs(self._default)


def run(quick: bool = False) -> dict[str, Any]:
    """Run every arm; claims, controls and tables in the form of a results page."""
    scale, fleet = QUICK if quick else Scale(), load_fleet("default")
    seeds = range(FIRST_SEED, FIRST_SEED + scale.training_seeds)
    prepare_process()
    plan = arms(scale)
    learned, epsilon = judge_arms(fleet, plan, scale, seeds, "arms")
    gains = _heuristics(fleet, scale, seeds) | {a.name: g for a, g in zip(plan, learned, strict=True)}
    claims = _learning_claims(gains, epsilon)
    scarce = [_scarce(fleet, scale, decisions, 0.9) for decisions in scale.scarce]
    bandit = [] if quick else [_scarce(fleet, replace(scale, scarce_seeds=5), scale.scarce[0], 0.0)]
    claims += [_federation_claim(table) for table in scarce]
    names = [cluster.name for cluster in fleet.clusters]
    return {
        "seeds": scale.training_seeds,
        "note": _note(scale, epsilon, fleet),
        "claims": claims,
        "controls": _controls(gains),
        "metrics": {
            "gain_over_the_default_profile_percent": [_row(name, gains[name], names) for name in gains],
            "federated_minus_local_percent": [_scarce_row(t, names) for t in [*scarce, *bandit]],
            "negative_transfer": _negative(scarce, names),
        },
    }


def _heuristics(fleet: Fleet, scale: Scale, seeds: Sequence[int]) -> dict[str, F64]:
    """Rows that no federation trains: gain f64[1 or training seeds, clusters, held-out seeds]."""
    shape, where = Run(fleet, seeds[0]), held_out(scale.held_out_seeds)
    arena = Arena(shape, where)
    rows = {name: arena.gain(scorer)[None] for name, scorer in BASELINES.items() if name != "default"}
    rows["bestfit"] = arena.gain("bestfit")[None]
    rows["untrained"] = np.array([arena.gain(Run(fleet, seed).learner()) for seed in seeds])
    pretrained = configured(fleet, Arm("", {"start": "pretrained"}), scale)
    rows["pretrained only"] = np.array([arena.gain(Run(pretrained, seed).initial()) for seed in seeds])
    if any(arm.equal for arm in arms(scale)):
        place = Arena(replace(shape, equal=True), where)
        rows["equal nodes: most-allocated"] = place.gain("most-allocated")[None]
    return rows


def by_cluster(gain: F64) -> list[Interval]:
    """Interval over held-out seeds of each cluster's gain, the mean over training seeds."""
    return [interval(cluster.tolist()) for cluster in gain.mean(axis=0)]


def overall(gain: F64) -> Interval:
    """Interval over held-out seeds of the gain averaged over clusters and training seeds."""
    return interval(gain.mean(axis=(0, 1)).tolist())


def passes(gain: F64, rows: Mapping[str, F64], least: float = GAIN_LEAST) -> bool:
    """The gate: large enough, every cluster above 0, better than MostAllocated and untrained networks."""
    better = [overall(gain.mean(axis=0, keepdims=True) - rows[n].mean(axis=0)).low > 0 for n in _RIVALS]
    return overall(gain).mean >= least and all(i.low > 0 for i in by_cluster(gain)) and all(better)


_RIVALS = ("most-allocated", "untrained")


def _claim(text: str, estimate: Interval, holds: bool) -> dict[str, Any]:
    return {"claim": text, "estimate": estimate.mean, "ci95": [estimate.low, estimate.high], "holds": holds}


def _learning_claims(rows: Mapping[str, F64], epsilon: float | None) -> list[dict[str, Any]]:
    claims = []
    for name in ("federated", "wrong counterfactual", "measurement only"):
        if name not in rows:
            continue
        text = f"{name}, without DP: gain over the default profile passes the gate (>= {GAIN_LEAST:g} %)"
        claims.append(_claim(text, overall(rows[name]), passes(rows[name], rows)))
    if epsilon is not None:
        claims.append(_private_claim(rows["federated, DP"], epsilon))
    for name in _RIVALS:
        difference = overall(rows["federated"].mean(axis=0, keepdims=True) - rows[name].mean(axis=0))
        claims.append(_claim(f"federated minus {name}, points", difference, difference.low > 0))
    return claims


def _private_claim(private: F64, epsilon: float) -> dict[str, Any]:
    above = overall(private).mean >= GAIN_LEAST_DP and all(i.low > 0 for i in by_cluster(private))
    text = (
        f"federated, DP at epsilon {epsilon:.3g} a record: gain >= {GAIN_LEAST_DP:g} %, every cluster above 0"
    )
    return _claim(text, overall(private), above and epsilon <= EPSILON_MOST)


def _controls(rows: Mapping[str, F64]) -> list[dict[str, Any]]:
    shuffled = rows["shuffled rewards"]
    return [
        _claim(
            "shuffled rewards do not pass the federated gate",
            overall(shuffled),
            not passes(shuffled, rows),
        )
    ]


@dataclass(frozen=True, slots=True)
class Scarce:
    """Local and federated gains at one size of log, f64[training seeds, clusters]."""

    decisions: int
    gamma: float
    local: F64
    federated: F64

    @property
    def difference(self) -> F64:
        """Federated minus local, f64[training seeds, clusters]."""
        return self.federated - self.local


def _scarce(fleet: Fleet, scale: Scale, decisions: int, gamma: float) -> Scarce:
    seeds = range(FIRST_SEED, FIRST_SEED + scale.scarce_seeds)
    plan = scarce_arms(decisions, gamma)
    (local, federated), _ = judge_arms(fleet, plan, scale, seeds, f"{decisions} decisions, gamma {gamma:g}")
    return Scarce(decisions, gamma, local.mean(axis=2), federated.mean(axis=2))


def _federation_claim(table: Scarce) -> dict[str, Any]:
    difference = interval(table.difference.mean(axis=1).tolist())
    text = f"{table.decisions} logged decisions a cluster: federated minus local only, points"
    return _claim(text, difference, difference.low > 0)


def _row(name: str, gain: F64, clusters: Sequence[str]) -> dict[str, Any]:
    total = overall(gain)
    row: dict[str, Any] = {"row": name, "mean": total.mean, "95 %": [total.low, total.high]}
    for cluster, found in zip(clusters, by_cluster(gain), strict=True):
        row[cluster] = f"{found.mean:.1f} ({found.low:.1f} to {found.high:.1f})"
    return row


def _scarce_row(table: Scarce, clusters: Sequence[str]) -> dict[str, Any]:
    total = interval(table.difference.mean(axis=1).tolist())
    row: dict[str, Any] = {"decisions": table.decisions, "gamma": table.gamma, "seeds": len(table.local)}
    row |= {"local": float(table.local.mean()), "federated": float(table.federated.mean())}
    row |= {"difference": total.mean, "95 %": [total.low, total.high]}
    for i, cluster in enumerate(clusters):
        found = interval(table.difference[:, i].tolist())
        row[cluster] = f"{found.mean:+.1f} ({found.low:+.1f} to {found.high:+.1f})"
    return row


def _negative(tables: Sequence[Scarce], clusters: Sequence[str]) -> list[dict[str, Any]]:
    """How often a cluster was worse off in the federation than alone."""
    return [
        {
            "decisions": t.decisions,
            **{c: float((t.difference[:, i] < 0).mean()) for i, c in enumerate(clusters)},
        }
        for t in tables
    ]


def _note(scale: Scale, epsilon: float | None, fleet: Fleet) -> str:
    text = (
        "Gain is 100 (J - J_default) / |J_default|, J the composite objective of the fleet file, paired by "
        f"held-out arrival seed ({scale.held_out_seeds} a cluster); rows average {scale.training_seeds} "
        f"training seeds, federated against local {scale.scarce_seeds}. Every learned row has "
        f"{scale.updates} critic updates a cluster and {scale.public_records:,} logged decisions"
    )
    text += (
        ". Untrained networks and shuffled rewards gain as well, since any fixed preference for some nodes "
        "leaves others empty; so the gate asks for more than MostAllocated and untrained networks reach"
    )
    if epsilon is None:
        return f"{text}. Short form without differential privacy: too few seeds for a claim."
    return (
        f"{text}. Rows with DP have {scale.private_records:,} and epsilon {epsilon:.3g} at delta "
        f"{fleet.privacy.delta:g}, unit one transition, neighbours by add or remove, simulated noise (not a "
        "guarantee)."
    )
