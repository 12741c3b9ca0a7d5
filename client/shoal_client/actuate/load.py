# SPDX-License-Identifier: Apache-2.0
"""How busy a node is, for the actions that move load around."""

from __future__ import annotations

from shoal_client.state.live import LiveCluster
from shoal_common.cluster import N_CPU, U_CPU_WANTED


def cpu_load(cluster: LiveCluster, name: str) -> float:
    """Use of CPU / allocatable of a node, measured or else by its pods' requests; 1 where it is not known."""
    row = cluster.row(name)
    tables = cluster.cluster
    if row < 0 or tables.node[row, N_CPU] <= 0:
        return 1.0
    return float(tables.use[row, U_CPU_WANTED] / tables.node[row, N_CPU])
