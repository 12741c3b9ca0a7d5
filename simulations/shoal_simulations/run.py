# SPDX-License-Identifier: Apache-2.0
"""One simulated federation from fleet to summary: run or resume its rounds, compare, write the results.

A run's folder: `run.json` (what decides its result), `server/` (checkpoints), `clusters/NAME/` (a cluster's
own state and ledger), then `summary.json`, `report.html` and `policy/`.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from shoal_client.train import prepare_process
from shoal_common import __version__
from shoal_common.errors import InputError, ShoalError
from shoal_common.gate import evaluate
from shoal_common.learners.td3 import TD3
from shoal_common.observation import schema_hash
from shoal_common.policy import PolicyArtifact, Privacy
from shoal_common.privacy.config import WATERMARK
from shoal_common.wire import Arrays
from shoal_server.events import Ending, Event, Refusal, RoundEnded, RoundRecord
from shoal_server.events import Outcome as Federated
from shoal_simulations import engines
from shoal_simulations.comparison import compare
from shoal_simulations.evaluation import compare_rows, held_out
from shoal_simulations.experience import VALIDATION_SEED
from shoal_simulations.report import html
from shoal_simulations.virtual import TRAINER, Run

POLICY_ROW, UNTRAINED_ROW = "federated", "untrained"
OWN_FILES = ("run.json", "rewards.jsonl", "server", "clusters", "summary.json", "report.html", "policy")
VALIDATION_SECONDS = 1_200.0
VOID_ROUNDS = 3  # in a row without one admitted update: something is broken, not late


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during the rounds: everything up to the last full round is on disk."""


@dataclass(frozen=True, slots=True)
class Progress:
    """One finished round, for whoever watches.

    The reward is the composite of the new global model on public validation arrivals: no cluster reports its
    own. Epsilon is the largest over the clusters; each holds for the cluster's own records.
    """

    round: int
    rounds: int
    reward: float
    epsilon: float | None
    seconds: float
    refused: int


Watch = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Options:
    """How a run is carried out; none of it changes its result."""

    out: Path
    engine: str = "in-process"
    workers: int = 1
    fresh: bool = False


def claim(run: Run, options: Options) -> None:
    """Make `options.out` this run's folder.

    Raises:
        InputError: it holds a run of another configuration, or cannot be a folder.
    """
    out, about = options.out, {"digest": run.digest, "fleet": run.fleet.fleet.name, "seed": run.seed}
    remedy = "add --fresh to start over, or name another folder"
    try:
        if options.fresh:
            _clear(out)
        out.mkdir(parents=True, exist_ok=True)
        known = json.loads((out / "run.json").read_text()) if (out / "run.json").exists() else about
        if not isinstance(known, dict):
            raise ValueError("no JSON object")
        if known == about:
            (out / "run.json").write_text(json.dumps(about) + "\n")
    except OSError as error:
        problem = f"cannot be used ({error.strerror})"
        raise InputError(str(out), "--out", problem, "name another folder") from None
    except ValueError:
        raise InputError(str(out), "--out", "its run.json is damaged", remedy) from None
    if known != about:
        held = f"fleet {known.get('fleet')}, seed {known.get('seed')}"
        raise InputError(str(out), "--out", f"holds a run of another configuration ({held})", remedy)


def run_federation(run: Run, options: Options, watch: Watch = lambda _: None) -> dict[str, Any]:
    """Run or resume a federation in a folder that `claim` made its own; write and return the summary.

    Raises:
        Interrupted: Ctrl-C; the same call goes on at the round that was broken off.
    """
    prepare_process()
    out = options.out
    learner = run.learner()
    journal = _Journal(run, learner, out / "rewards.jsonl", watch)
    outcome = engines.run(
        [{"cluster": cluster.name} for cluster in run.fleet.clusters],
        flower_config(run, out),
        initial=run.initial().shared_state(),
        engine=options.engine,
        workers=options.workers,
        sink=journal,
        stop=threading.Event(),
    )
    if outcome.ending is Ending.STOPPED:
        raise Interrupted(f"stopped after round {outcome.round}; the same command goes on from there")
    policy = run.learner()
    policy.load_shared(_writable(outcome.arrays))
    summary = _summary(run, options, outcome, journal.rewards(), policy)
    summary["policy_digest"] = _save_policy(out / "policy", policy, summary)
    _write(out, summary)
    return summary


def _save_policy(directory: Path, policy: TD3, summary: dict[str, Any]) -> str:
    """Write the artifact; returns its digest."""
    names = ("fleet", "seed", "rounds", "run_sha256", "parameters_sha256")
    privacy = None
    if summary["epsilon"] is not None:
        privacy = Privacy(
            epsilon=summary["epsilon"],
            delta=summary["delta"],
            unit=summary["unit"],
            neighbouring=summary["neighbouring"],
            simulation=True,
        )
    provenance = {"learner": "td3"} | {name: summary[name] for name in names}
    artifact = PolicyArtifact.save(directory, policy.networks.actor, provenance, privacy)
    return str(artifact.manifest["digest"])


def _clear(out: Path) -> None:
    """Remove what a run wrote, and nothing else, from the folder of an earlier run."""
    if not (out / "run.json").exists():
        return
    for name in OWN_FILES:
        path = out / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def flower_config(run: Run, out: Path) -> dict[str, bool | int | float | str]:
    """Flower's run configuration: the server's settings, and what the trainers read."""
    federation, out = run.fleet.federation, out.resolve()  # workers may stand elsewhere
    return {
        **run.config,
        "rounds": federation.rounds,
        "fraction": federation.fraction,
        "min-clusters": len(run.fleet.clusters),
        "checkpoint-dir": str(out / "server"),
        "fleet-digest": run.digest,
        "trainer": TRAINER,
        "state-dir": str(out / "clusters"),
    }


@final
class _Journal:
    """Follows the rounds: measures the new model, tells the watcher, remembers rewards across restarts."""

    def __init__(self, run: Run, learner: TD3, path: Path, watch: Watch) -> None:
        self._run, self._learner, self._path, self._watch = run, learner, path, watch
        self._scenarios = [replace(s, seconds=VALIDATION_SECONDS) for s in run.fleet.scenarios()]
        self._refusals: list[Refusal] = []
        self._void = 0

    def __call__(self, event: Event) -> None:
        """Take one event of the server."""
        if isinstance(event, Refusal):
            self._refusals.append(event)
        elif isinstance(event, RoundEnded):
            self._round_ended(event)

    def _round_ended(self, event: RoundEnded) -> None:
        record = event.record
        self._check_void(record)
        self._learner.load_shared(_writable(event.arrays))
        reward = self._reward()
        with self._path.open("a") as file:
            file.write(json.dumps({"round": record.round, "reward": reward}) + "\n")
        epsilon = max(record.epsilon.values(), default=None)
        rounds = self._run.fleet.federation.rounds
        self._watch(Progress(record.round, rounds, reward, epsilon, record.seconds, len(record.refused)))

    def _check_void(self, record: RoundRecord) -> None:
        """End a simulation in which nothing is learned any more for another reason than spent budgets."""
        lost = record.void is not None and bool(record.refused)
        self._void = self._void + 1 if lost else 0
        if self._void == VOID_ROUNDS:
            last = self._refusals[-1]
            raise ShoalError(f"{VOID_ROUNDS} void rounds in a row, the last: {last.cluster}: {last.detail}")

    def _reward(self) -> float:
        """The composite of the global model on one validation seed, the mean over the clusters."""
        found = evaluate(self._scenarios, [VALIDATION_SEED], self._run.weights, self._learner)
        return float(np.mean([outcomes[0].objective for outcomes in found.values()]))

    def rewards(self) -> dict[int, float]:
        """By round; a round whose reward was lost to a crash is missing."""
        lines = self._path.read_bytes().splitlines() if self._path.exists() else []
        found = {}
        for line in lines:
            with suppress(ValueError, TypeError, KeyError):  # torn by the crash
                row = json.loads(line)
                found[int(row["round"])] = float(row["reward"])
        return found


def _writable(arrays: Arrays) -> dict[str, npt.NDArray[np.float32]]:
    """Copies: torch refuses the read-only views that come off the wire."""
    return {name: np.array(array) for name, array in arrays.items()}


def _summary(
    run: Run, options: Options, outcome: Federated, rewards: dict[int, float], policy: TD3
) -> dict[str, Any]:
    """The document of summary.json, after the comparison on held-out arrivals."""
    fleet, privacy = run.fleet, run.privacy()
    scenarios, seeds = fleet.scenarios(), held_out(fleet.evaluation.seeds)
    policies = {UNTRAINED_ROW: run.learner(), POLICY_ROW: policy}
    rows = compare_rows(scenarios, seeds, run.weights, policies)
    history = outcome.history
    epsilon = max((e for record in history for e in record.epsilon.values()), default=None)
    return {
        "shoal": __version__,
        "fleet": fleet.fleet.name,
        "run_sha256": run.digest,
        "seed": run.seed,
        "rounds": outcome.round,
        "ending": outcome.ending.value,
        "engine": options.engine,
        "workers": options.workers,
        "schema_hash": schema_hash(),
        "parameters": sum(int(a.size) for a in outcome.arrays.values()),
        "parameters_sha256": outcome.sha256,
        "objective": fleet.fleet.objective.model_dump(),
        "epsilon": epsilon,
        "target_epsilon": fleet.privacy.target_epsilon if privacy else None,
        "delta": privacy.delta if privacy else None,
        "unit": privacy.unit if privacy else None,
        "neighbouring": privacy.neighbouring if privacy else None,
        "noise_multiplier": privacy.sigma if privacy else None,
        "privacy_note": WATERMARK if privacy else None,
        "progress": [_progress(record, rewards) for record in history],
        "seconds_per_round": [record.seconds for record in history],
        "held_out_seeds": seeds,
        "policy_row": POLICY_ROW,
        "clusters": [
            {"name": s.name, "nodes": len(s.node_rows), "rows": compare(rows[s.name])} for s in scenarios
        ],
    }


def _progress(record: RoundRecord, rewards: dict[int, float]) -> dict[str, Any]:
    return {
        "round": record.round,
        "reward": rewards.get(record.round),
        "epsilon": max(record.epsilon.values(), default=None),
        "epsilon_by_cluster": dict(record.epsilon),
        "seconds": record.seconds,
        "admitted": list(record.admitted),
        "refused": dict(record.refused),
    }


def _write(out: Path, summary: dict[str, Any]) -> None:
    """Write summary and report; each appears as a whole."""
    for name, text in (
        ("summary.json", json.dumps(summary, indent=1) + "\n"),
        ("report.html", html(summary)),
    ):
        staging = out / f".{name}"
        staging.write_text(text, encoding="utf-8")
        staging.replace(out / name)
