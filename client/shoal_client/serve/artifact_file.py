# SPDX-License-Identifier: Apache-2.0
"""The policy artifact that is served, read again when it changes on disk.

A new artifact takes over at the next decision once it verifies, fits the feature tables and answers a
decision with finite numbers. Otherwise the old one stays and the reason is told; a half-written directory is
tried again until it is whole.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from shoal_client.metrics import POLICY_INFO, POLICY_RELOADS
from shoal_client.periodic import Periodic
from shoal_common.cluster import feasible_mask
from shoal_common.decide import Embeddings, RecordTables, TokenScorer, decide, observe
from shoal_common.errors import Fatal, InputError, ShoalError
from shoal_common.kube.snapshot import Snapshot
from shoal_common.pods import NodeRecord, PodRecord
from shoal_common.reward import ObjectiveWeights
from shoal_common.scorers.artifact import MANIFEST
from shoal_common.scorers.artifact_numpy import open_artifact
from shoal_common.tables import pod_row

LOOK_SECONDS = 1.0
Stamp = tuple[int, int, int]

_log = logging.getLogger("shoal.client.serve")


@dataclass(frozen=True, slots=True)
class ServedPolicy:
    """A verified policy in memory."""

    scorer: TokenScorer
    digest: str
    version: str
    profiles: int


@final
class ArtifactFile:
    """Loads the artifact of a directory, then again whenever its manifest changes."""

    def __init__(self, directory: Path | None) -> None:
        """Load at once; None serves no policy.

        Raises:
            InputError, SchemaMismatch, Fatal: the first one cannot be served.
        """
        self._directory = directory
        self._stamp: Stamp | None = None
        self._looking = Periodic("artifact", self.look, LOOK_SECONDS)
        self.current: ServedPolicy | None = None
        self.problem = ""
        if directory is not None:
            self._stamp = _stamp(directory)
            self._take(load(directory))

    def start(self) -> None:
        """Watch the directory from a thread of its own."""
        if self._directory is not None:
            self._looking.start()

    def stop(self) -> None:
        """End the thread."""
        self._looking.stop()

    def look(self) -> bool:
        """Load the artifact again if it changed; whether there is a new one."""
        if self._directory is None:
            return False
        stamp = _stamp(self._directory)
        if stamp is None or stamp == self._stamp:
            return False
        try:
            policy = load(self._directory)
        except ShoalError as error:
            if str(error) != self.problem:
                _log.warning("the policy on disk is not taken: %s", error)
                POLICY_RELOADS.labels("refused").inc()
            self.problem = str(error)
            return False
        self._stamp = stamp
        self._take(policy)
        POLICY_RELOADS.labels("taken").inc()
        return True

    def _take(self, policy: ServedPolicy) -> None:
        self.current, self.problem = policy, ""
        POLICY_INFO.clear()
        POLICY_INFO.labels(policy.version, policy.digest).set(1)
        _log.info("serving policy %s", policy.digest[:12])


def load(directory: Path) -> ServedPolicy:
    """Open, verify and try an artifact.

    Raises:
        InputError, SchemaMismatch: it does not verify, or is whole but cannot be run.
        Fatal: it does not decide a decision that any policy can.
    """
    try:
        scorer = open_artifact(directory)
        profiles = int(scorer.manifest["profiles"])
        version = str(scorer.manifest["provenance"].get("version", ""))
        choice = _try(scorer, profiles)
    except ShoalError:
        raise
    except Exception as error:  # onnxruntime's own derive from nothing narrower
        problem = f"cannot be run ({type(error).__name__}: {error})"
        raise InputError(str(directory), "artifact", problem, "save the policy again") from error
    if choice < 0:
        raise Fatal(f"{directory}: gives no finite score for an ordinary decision; serve an earlier policy")
    return ServedPolicy(scorer, str(scorer.manifest["digest"]), version, profiles)


def _try(scorer: TokenScorer, profiles: int) -> int:
    """Decide on a small pod and three ordinary nodes, as a request would; compiles all kernels on the way."""
    room = {"cpu": 16_000, "memory": 64 * 2**30, "pods": 110}
    nodes = tuple(NodeRecord(f"n{i}", allocatable=room) for i in range(3))
    tables, kept, rows = RecordTables.of(Snapshot(nodes)), Embeddings(scorer), np.arange(3)
    kept.update(tables, rows[:0])
    kept.update(tables, rows[:1])
    row, fits = pod_row(PodRecord("p")), np.empty(3, np.bool_)
    feasible_mask(tables.node, tables.use, tables.gpu_free, row, fits)
    mask = np.repeat(fits[:, None], profiles, axis=1)
    obs = observe(tables, row, mask, ObjectiveWeights().array(), None, rows, kept.features)
    return int(decide(kept.at(rows), obs).action[0])


def _stamp(directory: Path) -> Stamp | None:
    try:
        found = (directory / MANIFEST).stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns, found.st_size
