# SPDX-License-Identifier: Apache-2.0
"""Local training for one round: receive, collect, learn, charge, store, ship.

The order makes a crash anywhere harmless. The ledger is charged before anything is stored, and the update,
the learner's state and the round's experience become visible together, by one rename:

- before the charge: nothing was paid or released; the round is trained again;
- after the charge: it is trained again and the same range is found charged, so it is paid once;
- after the rename: the stored update is sent again and never trained again.

So the ledger is never below what was released, and at most one round's range above it.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import zlib
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import numpy as np

from shoal_client.training.rounds import RoundStore, StoredRound
from shoal_common.errors import InputError, LedgerCorrupt
from shoal_common.privacy.ledger import Ledger
from shoal_common.privacy.shared_update import SharedUpdate
from shoal_common.reward import ObjectiveWeights
from shoal_common.transition import Transitions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    from shoal_common.learners.base import Learner
    from shoal_common.privacy.plan import PrivacyPlan
    from shoal_common.replay import Batch, Replay

    Arrays = Mapping[str, npt.NDArray[np.float32]]

# glibc's mallopt parameters (malloc.h)
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_MAX: Final = -4
_INT_MAX: Final = 2**31 - 1

_log = logging.getLogger("shoal.client")


@dataclass(frozen=True, slots=True)
class RoundConfig:
    """What a trainer is told beside the global arrays: the round (from 1), the run's digest, the schema."""

    round: int
    run: str
    schema_hash: str


class Trainer(Protocol):
    """Trains one cluster for one round."""

    def round(self, global_state: Arrays, config: RoundConfig) -> SharedUpdate:
        """The update of this round; raises `BudgetExhausted` where nothing may leave any more."""


class ExperienceSource(Protocol):
    """Where a cluster's transitions come from: a live store, a twin, a log."""

    def snapshot(self, round_number: int) -> Transitions:
        """What is new since the last round, possibly nothing.

        A source of a simulation must be a function of the round and of the learner's parameters, so that a
        resumed run collects what an uninterrupted one would.
        """


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """How much one round trains. Public constants."""

    updates: int = 50  # critic updates a round
    batch: int = 128  # rows an update, where the plan does not say
    candidates: int = 8  # K, candidates a row
    seed: int = 0
    weights: ObjectiveWeights = field(default_factory=ObjectiveWeights)


@final
class LocalTrainer:
    """Trains one cluster, with its state under `state_dir`.

    Another process may train the same cluster in between (Ray's actors), never at the same time: what is in
    memory is used only while the disk holds nothing newer.
    """

    def __init__(
        self,
        cluster: str,
        learner: Learner,
        replay: Replay,
        source: ExperienceSource,
        plan: PrivacyPlan | None,
        state_dir: Path,
        config: TrainingConfig,
        ledger_path: Path | None = None,
    ) -> None:
        prepare_process()
        self._cluster, self._learner, self._replay, self._source = cluster, learner, replay, source
        self._plan, self._config = plan, config
        self._store = RoundStore(state_dir, replay.config.capacity)
        self._ledger_path = ledger_path or state_dir / "ledger.jsonl"
        self._ledger: Ledger | None = None
        self._round: int | None = None  # the round whose end the memory holds; None: not to be trusted
        self._steps = 0
        self._warned = False  # of more records than the public number
        with self._store.alone():
            if self._store.latest() is None:
                self._begin()

    def round(self, global_state: Arrays, config: RoundConfig) -> SharedUpdate:
        """Train `config.round`, or return its stored update.

        Raises: `BudgetExhausted`; `InputError` where the state belongs to another run or is past that round.
        """
        with self._store.alone():
            stored = self._store.update(config.round, config.run)
            return self._train(global_state, config) if stored is None else stored

    def _train(self, global_state: Arrays, config: RoundConfig) -> SharedUpdate:
        self._restore(config)
        begin, end = self._steps, self._steps + self._config.updates
        # a spent cluster receives too; what this changes in memory the next round's model overwrites
        self._learner.load_shared({name: np.array(array) for name, array in global_state.items()})
        self._check_budget(config.round, begin, end)
        self._round = None  # until the round is stored, the disk knows better than the memory
        fresh = self._source.snapshot(config.round)
        self._replay.add(fresh)
        self._learn(config.round)
        update = self._charge(config, begin, end)
        state = StoredRound(config.round, config.run, end, update, fresh, _pickled(self._learner))
        self._store.save(state)
        self._round, self._steps = config.round, end
        return update

    def _begin(self) -> None:
        """Store round 0. Steps go on where the ledger ends: what an earlier run paid for is never free."""
        head, step = None, 0
        if self._plan is not None:
            ledger = Ledger(self._ledger_path)
            last = max((row.step_end for row in ledger.rows), default=0)
            head, step = ledger.head, self._plan.config.aligned(last)
        self._store.save(StoredRound(0, "", step, None, None, _pickled(self._learner), head))

    def _restore(self, config: RoundConfig) -> None:
        """Bring the memory to the end of the newest stored round."""
        latest = self._store.latest()
        if latest is None or latest >= config.round:
            raise InputError(
                str(self._store.directory),
                "round",
                f"the state is at round {latest}, the server asks for round {config.round}",
                "restore the server's checkpoint or start the run in another folder",
            )
        if self._store.run(latest) not in ("", config.run):
            raise self._store.another_run()
        if self._round == latest:
            return
        state = self._store.load(latest)
        try:
            self._learner.load_state_dict(_unpickled(state.learner))
        except Exception as error:  # torch raises anything at all on a damaged file
            raise self._store.damaged(latest, error) from error
        self._steps = state.steps
        self._replay = type(self._replay)(self._replay.config, self._replay.num_nodes)
        for transitions in self._store.experience():
            self._replay.add(transitions)
        if self._plan is not None:
            self._ledger = Ledger(self._ledger_path, state.ledger_head)
        self._round = latest

    def _check_budget(self, round_number: int, begin: int, end: int) -> None:
        """Raise `BudgetExhausted` unless the range is paid for already or affordable.

        Paid and not released is only the ledger's last row, of a round that a crash broke off.
        """
        if self._plan is None or self._ledger is None:
            return
        wanted = self._plan.charge(self._cluster, round_number, begin, end).key
        paid = [row.key for row in self._ledger.rows]
        if wanted in paid[:-1]:
            raise LedgerCorrupt(
                f"{self._store.directory}: the training state is older than the ledger, which has {wanted} "
                "and later rounds; what it paid for was released. Restore the state, or begin elsewhere"
            )
        if wanted not in paid:
            self._ledger.check(self._plan, begin, end)

    def _learn(self, round_number: int) -> None:
        for batch in self._batches(round_number, self._rng(round_number)):
            self._learner.update(batch)

    def _rng(self, round_number: int) -> np.random.Generator:
        """What candidates and objective weights are drawn from.

        A row's draws depend on how many rows stand before it. That couples no records as long as the draws
        are secret: then every row's are alike. Under a known seed one record would decide what is drawn for
        the next, so with real privacy they come from the operating system.
        """
        if self._plan is not None and not self._plan.simulation:
            return np.random.default_rng()
        return np.random.default_rng([self._config.seed, zlib.crc32(self._cluster.encode()), round_number])

    def _batches(self, round_number: int, rng: np.random.Generator) -> Iterator[Batch]:
        """The round's batches: Poisson draws of the plan, or uniform rows."""
        config, weights = self._config, self._config.weights.array()
        if self._plan is None:
            for _ in range(config.updates):
                yield self._replay.sample(rng, config.batch, config.candidates, weights)
            return
        snapshot = self._replay.snapshot()
        if len(snapshot) > self._plan.config.units_public and not self._warned:
            self._warned = True
            _log.warning(
                "%s holds %d records, more than units_public = %d: batches are larger than planned, and "
                "delta should be below 1 / records",
                self._cluster,
                len(snapshot),
                self._plan.config.units_public,
            )
        sampler = self._plan.sampler(self._plan.generator("sampler", self._cluster, round_number))
        for _ in range(config.updates):
            yield snapshot.sample(rng, sampler.draw(len(snapshot)), config.candidates, weights)

    def _charge(self, config: RoundConfig, begin: int, end: int) -> SharedUpdate:
        """Write the ledger row, then make the update that it pays for."""
        head, epsilon, delta, unit = "", None, None, ""
        if self._plan is not None and self._ledger is not None:
            row = self._ledger.charge(self._plan.charge(self._cluster, config.round, begin, end))
            head, epsilon, delta, unit = row.hash, row.epsilon_after, row.delta, row.unit
        arrays = self._learner.shared_state()
        return SharedUpdate(
            self._cluster, config.round, config.schema_hash, arrays, head, epsilon, delta, unit
        )


def _pickled(learner: Learner) -> bytes:
    import torch

    buffer = BytesIO()
    torch.save(learner.state_dict(), buffer)
    return buffer.getvalue()


def _unpickled(state: bytes) -> dict[str, Any]:
    import torch

    learner: dict[str, Any] = torch.load(BytesIO(state), weights_only=True)
    return learner


def prepare_process() -> None:
    """One torch thread, so that any number of processes gives the same bits; and memory that is kept.

    Per-sample gradients allocate tens of megabytes a step. glibc would map and unmap them each time, which
    costs 2.7 times the step; with mapping and trimming off it reuses them.
    """
    import torch

    torch.set_num_threads(1)
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:  # musl has none
            mallopt(_M_MMAP_MAX, 0)
            mallopt(_M_TRIM_THRESHOLD, _INT_MAX)
