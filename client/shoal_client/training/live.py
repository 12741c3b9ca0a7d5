# SPDX-License-Identifier: Apache-2.0
"""Training on a live cluster's own experience, and the local policy that comes of it.

    DIR/ledger.jsonl             the cluster's one privacy ledger, over all runs
    DIR/runs/RUN/round-...       the trainer's state of a run (see `shoal_client.training.rounds`)
    DIR/policies/RUN-000007      the policy after a round; `latest` points to the newest, for shadow

The federation's settings come with each round and are public; what this cluster gives away at most is its
own. Whatever happens to the process, the ledger is charged once a round (see `shoal_client.train`).
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from shoal_client.experience.records import KEPT
from shoal_client.experience.source import LiveSource
from shoal_client.policies.limits import read_limits, within
from shoal_client.train import LocalTrainer, RoundConfig, TrainingConfig
from shoal_client.training.rounds import RoundStore
from shoal_common.learners.federated import FederatedLearning, Scalar
from shoal_common.privacy.config import Budget
from shoal_common.replay import Replay, ReplayConfig

if TYPE_CHECKING:
    from shoal_client.train import Arrays
    from shoal_common.policy import Privacy
    from shoal_common.privacy.shared_update import SharedUpdate

RUN_DIGITS: Final = 16
KEEP_POLICIES: Final = 3
LATEST: Final = "latest"

_log = logging.getLogger("shoal.client.trainer")


@dataclass(frozen=True, slots=True)
class LiveConfig:
    """Where a cluster's trainer finds and keeps things; without a budget it trains without privacy."""

    cluster: str
    experience: Path
    directory: Path
    budget: Budget | None


@final
class LiveTrainer:
    """The rounds of a live cluster; one `LocalTrainer` at a time, that of the run asked for."""

    def __init__(self, config: LiveConfig) -> None:
        self._config = config
        self._made: tuple[str, FederatedLearning, Budget | None] | None = None
        self._trainer: LocalTrainer | None = None
        self._newest: tuple[RoundConfig, FederatedLearning, SharedUpdate] | None = None

    def round(
        self, global_state: Arrays, config: RoundConfig, settings: Mapping[str, Scalar]
    ) -> SharedUpdate:
        """Train a round, or return its stored update, whatever the limits are by now: it is paid for.

        Raises:
            BudgetExhausted: the cluster gives nothing away any more.
            InputError: a setting or file is wrong.
        """
        learning = FederatedLearning.parse(settings)
        update = self._stored(config, learning) or self._train(global_state, config, learning)
        self._newest = config, learning, update
        return update

    def _stored(self, config: RoundConfig, learning: FederatedLearning) -> SharedUpdate | None:
        """The update of a round that was trained before."""
        store = RoundStore(self._state(config.run), learning.capacity)
        with store.alone():
            return store.update(config.round, config.run)

    def _train(self, global_state: Arrays, config: RoundConfig, learning: FederatedLearning) -> SharedUpdate:
        budget = within(self._config.budget, read_limits(self._config.directory))
        wanted = config.run, learning, budget
        if self._trainer is None or self._made != wanted:
            self._trainer = self._make(*wanted)
            self._made = wanted
        return self._trainer.round(global_state, config)

    def _state(self, run: str) -> Path:
        return self._config.directory / "runs" / run[:RUN_DIGITS]

    def _make(self, run: str, learning: FederatedLearning, budget: Budget | None) -> LocalTrainer:
        from shoal_common.privacy.plan import PrivacyPlan

        own = self._config
        plan = None
        if budget is not None:
            plan = PrivacyPlan(learning.privacy(budget))
        learner = learning.learner(plan, own.cluster)
        replay = ReplayConfig(
            capacity=learning.capacity,
            profiles=learning.profiles,
            reward_scale=learning.reward_scale,
            next_decision=learning.gamma > 0,
        )
        state = self._state(run)
        return LocalTrainer(
            own.cluster,
            learner,
            Replay(replay, KEPT),
            LiveSource(own.experience, state / "marks.json", learning.capacity, learning.profiles),
            plan,
            state,
            TrainingConfig(
                updates=learning.updates,
                batch=learning.batch,
                candidates=learning.candidates,
                seed=learning.seed,
            ),
            own.directory / "ledger.jsonl",
        )

    def publish(self) -> None:
        """Write the policy of the newest round and point `latest` to it; seconds of exporting."""
        from shoal_common.policy import PolicyArtifact

        if self._newest is None:
            return
        config, learning, update = self._newest
        folder = self._config.directory / "policies"
        name = f"{config.run[:RUN_DIGITS]}-{config.round:06d}"
        if (folder / name).exists():
            return
        learner = learning.learner()  # not the trainer's own, whose state is that of its round
        learner.load_shared(update.arrays)
        staging = folder / f".{name}"
        shutil.rmtree(staging, ignore_errors=True)
        provenance = {"learner": "td3", "cluster": self._config.cluster, "run": config.run, "version": name}
        PolicyArtifact.save(staging, learner.networks.actor, provenance, _privacy(update))
        staging.rename(folder / name)
        _point(folder, name)
        _log.info("round %d: local policy %s", config.round, folder / name)


def _privacy(update: SharedUpdate) -> Privacy | None:
    """What is said of the guarantee in the artifact."""
    if update.epsilon is None or update.delta is None:
        return None
    return {
        "epsilon": update.epsilon,
        "delta": update.delta,
        "unit": update.unit,
        "neighbouring": "add_remove",
        "simulation": False,
    }


def _point(folder: Path, name: str) -> None:
    """Let `latest` be this policy, at once; then remove all but the newest few."""
    link = folder / f".{LATEST}"
    link.unlink(missing_ok=True)
    os.symlink(name, link)
    link.replace(folder / LATEST)
    written = [path for path in folder.iterdir() if not path.name.startswith(".") and not path.is_symlink()]
    for old in sorted(written, key=lambda path: path.stat().st_mtime)[:-KEEP_POLICIES]:
        shutil.rmtree(old, ignore_errors=True)
