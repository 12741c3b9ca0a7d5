# SPDX-License-Identifier: Apache-2.0
"""(node, device, profile) candidates of a cluster with MIG devices."""

from __future__ import annotations

import numpy as np
import pytest

from shoal_common.accelerators.candidates import mig_candidates
from shoal_common.accelerators.mig import PROFILES
from shoal_common.cluster import MAX_GPUS, U_UP, Cluster
from shoal_common.twin.env import VectorEnv
from shoal_common.twin.scenarios import article


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return VectorEnv([article()], [1]).cluster(0)


def test_the_article_cluster_has_560(cluster: Cluster) -> None:
    rows = mig_candidates(cluster)
    assert len(rows) == 150 + 40 * 2 * 5 + 10
    assert np.count_nonzero(rows[:, 1] < 0) == 160
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_taken_slots_and_failed_nodes_remove_candidates(cluster: Cluster) -> None:
    occupied = np.zeros((len(cluster), MAX_GPUS), dtype=np.int64)
    occupied[150, 0] = 0b0001_0001  # 1g at slots 0 and 4: no 3g, 4g or 7g, though six slots are free
    rows = mig_candidates(cluster, occupied)
    left = {PROFILES[p].name for n, d, p in rows if n == 150 and d == 0}
    assert left == {"1g.5gb", "2g.10gb"}
    cluster.use[[0, 151], U_UP] = 0
    assert len(mig_candidates(cluster, occupied)) == 560 - 3 - 1 - 10
    cluster.use[[0, 151], U_UP] = 1


def test_labels_and_links_come_from_the_node_class(cluster: Cluster) -> None:
    assert cluster.software[0] == {}
    assert cluster.software[150]["nvidia.com/mig.strategy"] == "mixed"
    assert cluster.software[150]["nvidia.com/gpu.product"] == "A100-40GB"
    assert cluster.links[150].sum() == 2
    assert cluster.links[0].sum() == 0
    assert set(cluster.zone) == {0, 1, 2}
    assert cluster.rack.max() == 199 // 16
