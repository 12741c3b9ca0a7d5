# SPDX-License-Identifier: Apache-2.0
"""The store of closed decisions from which learners sample."""

from shoal_common.replay.batch import Batch
from shoal_common.replay.store import Replay, ReplayConfig, Snapshot

__all__ = ["Batch", "Replay", "ReplayConfig", "Snapshot"]
