# SPDX-License-Identifier: Apache-2.0
"""The candidates of a cluster where devices are partitioned: (node, device, MIG profile) instead of nodes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shoal_common.accelerators.mig import PLACEMENTS, PROFILES, feasible
from shoal_common.cluster import MAX_GPUS, N_EXISTS, N_GPUS, U_UP, Cluster

I64 = npt.NDArray[np.int64]

MIG_MODELS = ("A100-40GB",)
"""Accelerators whose profiles `mig.py` knows."""

_PROFILE_OF = np.array([p.profile for p in PLACEMENTS])


def mig_candidates(cluster: Cluster, occupied: I64 | None = None) -> I64:
    """Candidates i64[C, 3]: node, device, profile; device and profile are -1 on a node without MIG devices.

    A node that is down gives none. `occupied` i64[N, MAX_GPUS] are the devices' taken slots as bits (see
    `mig.py`), by default none; a profile is a candidate where one of its placements is still possible.
    """
    taken = np.zeros((len(cluster), MAX_GPUS), dtype=np.int64) if occupied is None else occupied
    up = (cluster.node[:, N_EXISTS] == 1) & (cluster.use[:, U_UP] == 1)
    is_mig = np.isin(cluster.accelerator, MIG_MODELS) & (cluster.node[:, N_GPUS] > 0)
    device = np.arange(MAX_GPUS) < cluster.node[:, N_GPUS, None]
    possible = feasible(taken)  # [N, MAX_GPUS, placements]
    profiles = np.stack([possible[..., i == _PROFILE_OF].any(-1) for i in range(len(PROFILES))], axis=-1)
    partitioned = np.argwhere(profiles & (device & (up & is_mig)[:, None])[..., None])
    plain = np.flatnonzero(up & ~is_mig)[:, None]
    whole = np.concatenate([plain, np.full((len(plain), 2), -1)], axis=1)
    rows = np.concatenate([partitioned, whole]).astype(np.int64)
    return rows[np.lexsort(rows.T[::-1])]
