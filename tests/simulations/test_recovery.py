# SPDX-License-Identifier: Apache-2.0
"""kill -9 in the middle of a round, of a private federation with real learners, and run again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal_common.privacy.ledger import Ledger

# The trainer of the run: TD3 under a privacy plan, on synthetic transitions. It kills the whole process where
# the environment says so: after cluster b's third charge, before its update is stored.
MODULE = """
import os, signal
from pathlib import Path
import numpy as np
from shoal_client.train import LocalTrainer, TrainingConfig
from shoal_common.learners.td3 import TD3, TD3Config
from shoal_common.observation import FC, FN, FP, FT
from shoal_common.privacy.config import PrivacyConfig
from shoal_common.privacy.plan import PrivacyPlan
from shoal_common.replay import Replay, ReplayConfig
from shoal_common.transition import Transitions

NODES, SIZE = 4, 24

def initial(run_config=None):
    return TD3(TD3Config(width=8), seed=0).shared_state()

class Source:
    def __init__(self, cluster):
        self.cluster = cluster

    def snapshot(self, round_number):
        rng = np.random.default_rng([ord(self.cluster), round_number])
        return Transitions(
            node=rng.random((SIZE, NODES, FN)).astype(np.float16),
            pair=rng.random((SIZE, NODES, FP)).astype(np.float16),
            task=rng.random((SIZE, FT)).astype(np.float16),
            ctx=rng.random((SIZE, FC)).astype(np.float16),
            mask=np.ones((SIZE, NODES, 1), np.bool_),
            action=rng.integers(0, NODES, SIZE).astype(np.int32),
            quota=np.ones((SIZE, 2), np.float32),
            propensity=np.ones(SIZE, np.float32),
            reward=-rng.random((SIZE, 4)).astype(np.float32),
            closed=np.ones(SIZE, np.bool_),
            next_index=np.r_[np.arange(1, SIZE), -1],
            unit=np.arange(SIZE),
        )

class Dying:
    def __init__(self, trainer, cluster):
        self.trainer, self.cluster = trainer, cluster

    def round(self, state, config):
        if os.environ.get("DIE") and (self.cluster, config.round) == ("b", 3):
            self.trainer._store.save = lambda _: os.kill(int(os.environ["DIE"]), signal.SIGKILL)
        return self.trainer.round(state, config)

def make(node_config, run_config):
    cluster = node_config["cluster"]
    plan = PrivacyPlan(PrivacyConfig(delta=1e-5, clip_norm=1.0, batch=8, units_public=64, critic_steps=16,
                                     noise_multiplier=2.0, simulation_seed=1))
    learner = TD3(TD3Config(width=8), seed=3, plan=plan, cluster=cluster)
    trainer = LocalTrainer(cluster, learner, Replay(ReplayConfig(capacity=200), NODES), Source(cluster), plan,
                           Path(run_config["state-dir"]) / cluster,
                           TrainingConfig(updates=4, batch=8, candidates=3, seed=5))
    return Dying(trainer, cluster)
"""

MAIN = """
import json, os, sys
folder, workers, die = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "die"
if die:
    os.environ["DIE"] = str(os.getpid())
import recovery_trainer
from shoal_server.events import RunStarted
from shoal_simulations.engines import run
config = {"rounds": 4, "trainer": "recovery_trainer:make", "state-dir": folder + "/clients",
          "checkpoint-dir": folder + "/server"}
first = []
out = run([{"cluster": c} for c in "abc"], config, initial=recovery_trainer.initial(), workers=workers,
          sink=lambda e: first.append(e.first) if isinstance(e, RunStarted) else None)
print(json.dumps({"sha256": out.sha256, "first": first[0], "round": out.round,
                  "admitted": [len(r.admitted) for r in out.history]}))
"""


def _run(tmp_path: Path, name: str, workers: int, die: bool = False) -> subprocess.CompletedProcess[str]:
    (tmp_path / "recovery_trainer.py").write_text(MODULE)
    command = [sys.executable, "-c", MAIN, str(tmp_path / name), str(workers), "die" if die else "live"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=120)


def _rows(tmp_path: Path, name: str, cluster: str) -> list[tuple[int, int, int]]:
    ledger = Ledger(tmp_path / name / "clients" / cluster / "ledger.jsonl")
    return [(row.round, row.step_begin, row.step_end) for row in ledger.rows]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.e2e)])
def test_killed_in_the_middle_of_a_round_and_run_again(tmp_path, workers):
    straight = json.loads(_run(tmp_path, "straight", 1).stdout)
    assert straight["admitted"] == [3, 3, 3, 3]
    assert _run(tmp_path, "killed", workers, die=True).returncode == -9
    # b's third range is paid and not released: one round's range above, never below
    assert [row[0] for row in _rows(tmp_path, "killed", "b")] == [1, 2, 3]
    assert not (tmp_path / "killed" / "clients" / "b" / "round-000003").exists()
    again = json.loads(_run(tmp_path, "killed", workers).stdout)
    assert again == {**straight, "first": 3}
    for cluster in "abc":
        paid = [(1, 0, 4), (2, 4, 8), (3, 8, 12), (4, 12, 16)]  # each range once
        assert _rows(tmp_path, "killed", cluster) == paid
