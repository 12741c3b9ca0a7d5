# SPDX-License-Identifier: Apache-2.0
"""A policy artifact on Kubernetes records: what `shoal score --scorer DIRECTORY` runs.

`shoal_common.tables` fills the features from the records alone. On a live cluster the client fills the same
ones from its measurements and from what it knows of the pods' apps.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from shoal_common.cluster import MAX_GPUS, MAX_ZONES, NODE_COLUMNS, USE_COLUMNS, Mask
from shoal_common.features import encode_context, encode_node, encode_pairs, encode_task
from shoal_common.kube.profile import DEFAULT_FILTERS, refuse
from shoal_common.kube.snapshot import Snapshot
from shoal_common.kube.verdict import Verdict
from shoal_common.observation import FC, FN, FP, FT, Observation
from shoal_common.pods import PodRecord
from shoal_common.reward import ObjectiveWeights
from shoal_common.scorers.artifact import ArtifactScorer
from shoal_common.tables import fill, pod_row

NAME = "Policy"


def snapshot_scorer(directory: Path) -> Callable[[Snapshot, PodRecord], Verdict]:
    """Filter as kube-scheduler does, then score by the artifact: its logits, higher is better.

    Raises:
        InputError, SchemaMismatch: the artifact does not verify.
    """
    scorer = ArtifactScorer(directory)
    profiles = int(scorer.manifest["profiles"])

    def evaluate(snapshot: Snapshot, pod: PodRecord) -> Verdict:
        refusals, feasible = refuse(DEFAULT_FILTERS, snapshot, pod)
        names = {info.name for info in feasible}
        mask = np.array([info.name in names for info in snapshot.infos], dtype=np.bool_)
        rows: dict[str, dict[str, float]] = {}
        if feasible:
            logits = scorer.score(observe(snapshot, pod, mask, profiles)).logits[0].max(-1)
            rows = {info.name: {NAME: float(logits[n])} for n, info in enumerate(snapshot.infos) if mask[n]}
        return Verdict(
            feasible=tuple(rows),
            failures={name: refusal.reasons for name, refusal in refusals.items()},
            codes={name: refusal.code for name, refusal in refusals.items()},
            scores=rows,
            total={name: row[NAME] for name, row in rows.items()},
        )

    return evaluate


def observe(snapshot: Snapshot, pod: PodRecord, mask: Mask, profiles: int = 1) -> Observation:
    """Fill the features of one decision from Kubernetes records; mask bool[N] holds for every profile."""
    infos = snapshot.infos
    node, use = np.zeros((len(infos), NODE_COLUMNS)), np.zeros((len(infos), USE_COLUMNS))
    gpu, zone = np.zeros((len(infos), MAX_GPUS)), np.zeros((len(infos), MAX_ZONES, 2))
    for n, info in enumerate(infos):
        fill(info.node, info.pods, node[n], use[n], gpu[n], zone[n])
    wanted = pod_row(pod)
    pending = sum(not p.node_name and not p.finished for p in snapshot.pods)
    obs = Observation(
        node=np.zeros((1, len(infos), FN), np.float32),
        pair=np.zeros((1, len(infos), FP), np.float32),
        task=np.zeros((1, FT), np.float32),
        ctx=np.zeros((1, FC), np.float32),
        w=ObjectiveWeights().array()[None],
        mask=np.repeat(mask[None, :, None], profiles, axis=2),
        plugin=np.zeros((1, len(infos), 0), np.float32),
    )
    for n in range(len(infos)):
        encode_node(node[n], use[n], gpu[n], zone[n], obs.node[0, n])
    encode_pairs(node, use, zone, wanted, obs.pair[0])
    encode_task(wanted, obs.task[0])
    encode_context(node, use, float(pending), 1.0, 1.0, 0.0, obs.ctx[0])
    return obs
