# SPDX-License-Identifier: Apache-2.0
"""The online replay: departures, the queue and means over time, by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal_common.errors import InputError
from shoal_common.scorers import fgd
from shoal_simulations import openb
from shoal_simulations.lifetimes import Online, run_online
from shoal_simulations.traces.openb import read_nodes, read_pods

PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,\
creation_time,deletion_time,scheduled_time
a,1000,1,1,1000,,LS,Running,0,10,0
b,1000,1,1,1000,,LS,Running,2,7,4
c,1000,1,1,400,,BE,Running,6,9,
d,1000,1,8,1000,,BE,Running,8,9,8
e,1000,1,0,0,,BE,Running,20,21,20
"""


def online(tmp_path: Path, policy: str = "fgd") -> tuple[Online, openb.Cluster]:
    (tmp_path / "nodes.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\nn,4000,100,1,T4\n")
    (tmp_path / "pods.csv").write_text(PODS)
    nodes, pods = read_nodes(tmp_path / "nodes.csv"), read_pods(tmp_path / "pods.csv")
    cluster = openb.prepare(nodes, pods, openb.Order(np.arange(len(pods)), np.arange(1)))
    return run_online(cluster, pods, openb.by_policy(cluster, policy)), cluster


@pytest.mark.parametrize("policy", fgd.POLICIES)
def test_queue_and_means_by_hand(tmp_path: Path, policy: str) -> None:
    # a runs 0-10; b waits from 2, runs 10-13; c waits from 6, runs 13-16; d never fits; e runs 20-21
    result, cluster = online(tmp_path, policy)
    assert result.waits_s.tolist() == [0, 8, 7, 0]
    assert result.never_started == 1
    assert result.span_s == 20
    assert result.gpu_allocation == pytest.approx(100 * (10 + 3 + 0.4 * 3) / 20)
    assert result.gpu_allocation_peak == 100
    assert result.cpu_allocation == pytest.approx(100 * 16 / 4 / 20)
    assert result.pending == pytest.approx((8 + 7 + 12) / 20)
    assert cluster.state.nodes.gpu_left.tolist() == [[1000]]
    assert cluster.state.nodes.cpu_left.tolist() == [4000]


def test_a_list_without_times_is_refused(tmp_path: Path) -> None:
    _, cluster = online(tmp_path)
    (tmp_path / "short.csv").write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,1,0,0\n")
    pods = read_pods(tmp_path / "short.csv")
    with pytest.raises(InputError, match="no times"):
        run_online(cluster, pods, openb.by_policy(cluster, "fgd"))
