# SPDX-License-Identifier: Apache-2.0
"""The openb replay on lists small enough to follow by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal_common.errors import InputError
from shoal_common.scorers import fgd
from shoal_simulations import openb
from shoal_simulations.traces.base import NodeTrace, PodTrace
from shoal_simulations.traces.openb import read_nodes, read_pods

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,32000,1000,2,T4\nn1,64000,1000,4,G2\nn2,16000,1000,0,\n"
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec
p0,4000,10,1,500,
p1,8000,10,1,1000,G2|G2|T4
p2,8000,10,2,1000,
p3,2000,10,0,0,
p4,8000,10,1,1000,A10
"""


@pytest.fixture
def lists(tmp_path: Path) -> tuple[NodeTrace, PodTrace]:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(PODS)
    return read_nodes(tmp_path / "nodes.csv"), read_pods(tmp_path / "pods.csv")


def in_order(*pods: int) -> openb.Order:
    return openb.Order(np.array(pods), np.arange(3))


def test_best_fit_by_hand(lists: tuple[NodeTrace, PodTrace]) -> None:
    cluster = openb.prepare(*lists, in_order(0, 1, 2, 3, 4))
    result = openb.replay(cluster, "bestfit")
    # p0 and p1 pack n0, p2 then needs n1, p3 takes the fullest node by CPU, p4's model does not exist
    assert result.node.tolist() == [0, 0, 1, 2, -1]
    assert result.devices.tolist() == [0b01, 0b10, 0b11, 0, 0]
    assert result.arrived_milli.tolist() == [500, 1500, 3500, 3500, 4500]
    assert result.used_milli.tolist() == [500, 1500, 3500, 3500, 3500]


@pytest.mark.parametrize("policy", fgd.POLICIES)
def test_nothing_is_allocated_beyond_the_nodes(lists: tuple[NodeTrace, PodTrace], policy: str) -> None:
    nodes, pods = lists
    order = openb.Order(np.random.default_rng(3).integers(0, 5, size=60), np.array([2, 0, 1]))
    result = openb.replay(openb.prepare(nodes, pods, order), policy)
    for n in range(len(nodes)):
        rows = order.pods[result.node == n]
        assert pods.cpu_milli[rows].sum() <= nodes.cpu_milli[n]
        assert pods.memory_mib[rows].sum() <= nodes.memory_mib[n]
        used = np.zeros(8, dtype=np.int64)
        for row, devices in zip(rows, result.devices[result.node == n], strict=True):
            assert int(devices).bit_count() == pods.num_gpu[row]
            for d in range(8):
                used[d] += pods.gpu_milli[row] * (int(devices) >> d & 1)
        assert used.max() <= 1000
        assert (used[nodes.gpus[n] :] == 0).all()
    total = (pods.gpu_milli * pods.num_gpu)[order.pods[result.node >= 0]].sum()
    assert result.used_milli[-1] == total


@pytest.mark.parametrize("policy", fgd.POLICIES[1:])
def test_step_by_step_equals_the_compiled_run(lists: tuple[NodeTrace, PodTrace], policy: str) -> None:
    order = openb.drawn_order(*lists, seed=5)
    fast = openb.replay(openb.prepare(*lists, order), policy)
    cluster = openb.prepare(*lists, order)
    slow = openb.replay_chosen(cluster, openb.by_policy(cluster, policy))
    assert fast.node.tolist() == slow.node.tolist()
    assert fast.devices.tolist() == slow.devices.tolist()
    np.testing.assert_allclose(fast.fragmentation_milli, slow.fragmentation_milli)


def test_a_scorer_from_outside_chooses_among_feasible_nodes(lists: tuple[NodeTrace, PodTrace]) -> None:
    cluster = openb.prepare(*lists, in_order(0, 1, 2, 3, 4))
    result = openb.replay_chosen(
        cluster, openb.by_scorer(cluster, lambda c, s, mask: c.state.nodes.cpu_left.astype(np.float64))
    )
    assert result.node.tolist() == [1, 1, 1, 1, -1]  # the most free CPU wins; p4 fits nowhere


def test_columns_are_means_over_arrivals_of_one_percent() -> None:
    total = 10_000
    result = openb.Replay(
        arrived_milli=np.array([100, 100, 249]),
        used_milli=np.array([100, 100, 201]),
        fragmentation_milli=np.array([1000.0, 2000.0, 500.0]),
        node=np.zeros(3, dtype=np.int64),
        devices=np.zeros(3, dtype=np.int64),
        total_gpu_milli=total,
        seconds=1.0,
    )
    allocation, fragmentation = openb.columns(result)
    assert allocation == {"0": 1.0, "1": 1.0, "2": 2.01, "3": 2.01}
    assert fragmentation == {"0": 15.0, "1": 15.0, "2": 5.0, "3": 5.0}


def test_drawn_order_stops_at_130_percent(lists: tuple[NodeTrace, PodTrace]) -> None:
    nodes, pods = lists
    order = openb.drawn_order(nodes, pods, seed=0)
    demand = (pods.gpu_milli * pods.num_gpu)[order.pods]
    limit = 1.3 * 6000
    assert set(order.pods[:5].tolist()) == set(range(5))
    assert demand[:-1].sum() <= limit
    assert sorted(order.nodes.tolist()) == [0, 1, 2]
    assert np.array_equal(order.pods, openb.drawn_order(nodes, pods, seed=0).pods)


def test_load_order(lists: tuple[NodeTrace, PodTrace], tmp_path: Path) -> None:
    path = tmp_path / "order.npz"
    ranks = np.array([2, 0, 1], dtype=np.uint16)
    np.savez(path, a_pods=np.array([1, 0], dtype=np.uint16), a_nodes=ranks, b_pods=[9], b_nodes=ranks)
    order = openb.load_order(path, "a", *lists)
    assert order.pods.tolist() == [1, 0]
    assert order.nodes.tolist() == [1, 2, 0]
    with pytest.raises(InputError, match="no order 'c'"):
        openb.load_order(path, "c", *lists)
    with pytest.raises(InputError, match="the pod list lacks"):
        openb.load_order(path, "b", *lists)
    with pytest.raises(InputError, match="cannot be read"):
        openb.load_order(tmp_path / "none.npz", "a", *lists)


@pytest.mark.parametrize("policy", fgd.POLICIES)
@pytest.mark.parametrize("shape", [(8,), (4, 4), (1,) * 8])
def test_kai_2153_sixteen_halves_fill_eight_devices_with_two_each(
    tmp_path: Path, policy: str, shape: tuple[int, ...]
) -> None:
    rows = "".join(f"n{i},64000,1000,{gpus},T4\n" for i, gpus in enumerate(shape))
    (tmp_path / "nodes.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\n" + rows)
    halves = "".join(f"p{i},1000,10,1,500\n" for i in range(16))
    (tmp_path / "pods.csv").write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\n" + halves)
    order = openb.Order(np.arange(16), np.arange(len(shape)))
    traces = read_nodes(tmp_path / "nodes.csv"), read_pods(tmp_path / "pods.csv")
    result = openb.replay(openb.prepare(*traces, order), policy)
    pods_per_device = np.unique(np.stack([result.node, result.devices]), axis=1, return_counts=True)[1]
    assert pods_per_device.tolist() == [2] * 8


def test_kubernetes_68036_fgd_keeps_the_nodes_of_four_for_the_jobs_of_four(tmp_path: Path) -> None:
    nodes = "sn,cpu_milli,memory_mib,gpu,model\na,64000,1000,4,T4\nb,64000,1000,4,T4\nc,64000,1000,2,T4\n"
    jobs = "".join(f"j{i},1000,10,{gpus},1000\n" for i, gpus in enumerate((2, 4, 4)))
    (tmp_path / "nodes.csv").write_text(nodes)
    (tmp_path / "pods.csv").write_text("name,cpu_milli,memory_mib,num_gpu,gpu_milli\n" + jobs)
    traces = read_nodes(tmp_path / "nodes.csv"), read_pods(tmp_path / "pods.csv")
    for ties in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        result = openb.replay(openb.prepare(*traces, openb.Order(np.arange(3), np.array(ties))), "fgd")
        assert result.node[0] == 2
        assert sorted(result.node[1:]) == [0, 1]
        assert result.used_milli[-1] == 10_000
        assert result.fragmentation_milli[-1] == 0


@pytest.mark.parametrize(
    ("rows", "ranks", "problem"),
    [
        (np.array([-1, 0]), np.arange(3), "names rows the pod list lacks"),
        (np.array([9]), np.arange(3), "names rows the pod list lacks"),
        (np.zeros((2, 2), dtype=np.int64), np.arange(3), "is no list of whole numbers"),
        (np.array([0.5]), np.arange(3), "is no list of whole numbers"),
        (np.int64(3), np.arange(3), "is no list of whole numbers"),
        (np.arange(3), np.arange(2), "does not rank this node list"),
    ],
)
def test_an_order_of_other_lists_is_refused(
    lists: tuple[NodeTrace, PodTrace],
    tmp_path: Path,
    rows: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    ranks: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    problem: str,
) -> None:
    np.savez(tmp_path / "order.npz", k_pods=rows, k_nodes=ranks)
    with pytest.raises(InputError, match=problem):
        openb.load_order(tmp_path / "order.npz", "k", *lists)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04garbage", b"\x93NUMPY", b"text"])
def test_an_order_that_is_no_archive_is_refused(
    lists: tuple[NodeTrace, PodTrace], tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "order.npz").write_bytes(content)
    with pytest.raises(InputError, match="cannot be read"):
        openb.load_order(tmp_path / "order.npz", "k", *lists)
