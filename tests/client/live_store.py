# SPDX-License-Identifier: Apache-2.0
"""An experience store with so many closed decisions, as `shoal client serve` leaves it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shoal_client.experience.records import DecisionRecord, Result, Seen
from shoal_client.experience.store import Choice, ExperienceStore
from shoal_common.cluster import (
    P_CLASS,
    P_CPU,
    P_CPU_USE,
    P_DURATION,
    P_MEMORY,
    P_SLA,
    POD_COLUMNS,
)
from shoal_common.observation import FC, FN, FP, FT

NODES = 5


def fill_store(directory: Path, decisions: int, first: int = 0, day: float = 1.8e9) -> None:
    """Append `decisions` decisions, closed with a reward each; a function of their numbers."""
    with ExperienceStore(directory) as store:
        for n in range(first, first + decisions):
            number = store.next_id()
            store.decided(_decision(number, n, day))
            store.bound(number, f"node-{n % NODES}", day + 10 * n + 1, Choice(n % NODES, 1 / NODES))
            reward = (-(n % 7) / 10, -(n % 3) / 10, -0.1, 0.0)
            ran = {"bound_at": day + 10 * n + 1, "started_at": day + 10 * n + 2}
            ended = day + 10 * n + 2 + 60 * (1 + n % 5)
            result = Result(
                "succeeded", node=f"node-{n % NODES}", reward=reward, ended_at=ended, learnable=True, **ran
            )
            store.closed(number, result, final=True)
        assert store.flush(20)


def _decision(number: int, n: int, day: float) -> DecisionRecord:
    rng = np.random.default_rng(n)
    pod = np.zeros(POD_COLUMNS)
    pod[P_CPU], pod[P_MEMORY], pod[P_CLASS] = 500 * (1 + n % 4), (1 + n % 3) * 2**30, n % 3
    pod[P_CPU_USE], pod[P_SLA], pod[P_DURATION] = pod[P_CPU] / 2, 1.5, 60.0 * (1 + n % 5)
    seen = Seen(
        node=rng.random((NODES, FN)).astype(np.float16),
        pair=rng.random((NODES, FP)).astype(np.float16),
        task=rng.random(FT).astype(np.float16),
        ctx=rng.random(FC).astype(np.float16),
        mask=np.ones((NODES, 1), np.bool_),
        logits=rng.random((NODES, 1)).astype(np.float32),
        propensity=np.full((NODES, 1), 1 / NODES, np.float32),
        names=tuple(f"node-{i}" for i in range(NODES)),
    )
    return DecisionRecord(
        number, f"uid-{n}", 1, day + 10 * n, "extender", "default-scheduler", "active", "digest", "tenant",
        "app", pod, seen, n % NODES,
    )  # fmt: skip
