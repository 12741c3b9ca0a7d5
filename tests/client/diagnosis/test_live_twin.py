# SPDX-License-Identifier: Apache-2.0
"""A live cluster as a scenario: its nodes to the byte, its pods as they came."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_client.diagnosis.live_twin import (
    FEWEST_PODS,
    LOAD,
    node_class,
    node_classes,
    offered_load,
    recorded_pods,
    scenario,
)
from shoal_client.experience.reader import ExperienceReader
from shoal_common.cluster import (
    N_CPU,
    N_DPU,
    N_EXISTS,
    N_MEMORY,
    NODE_COLUMNS,
    P_CLASS,
    P_CPU,
    P_CPU_USE,
    P_IO_USE,
    P_MEMORY,
    P_SLA,
)
from shoal_common.errors import InputError
from shoal_common.pods import NodeRecord
from shoal_common.tables import fill_node
from shoal_common.twin.scenarios import make_pods

sys.path.insert(0, str(Path(__file__).parents[1]))
from live_store import fill_store


def _node(cpu: int, memory: int, **annotations: str) -> np.ndarray:
    row = np.zeros(NODE_COLUMNS)
    room = {"cpu": cpu, "memory": memory, "pods": 58, "nvidia.com/gpu": 2}
    fill_node(NodeRecord("n", allocatable=room, annotations=annotations), row)
    return row


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.integers(1, 512_000), st.integers(1, 2**44))
def test_a_class_is_its_node_to_the_millicore_and_byte(cpu: int, memory: int) -> None:
    row = _node(cpu, memory, **{"shoal.dev/speed": "1.3", "shoal.dev/dpu": "1"})
    assert row[N_DPU] == 1
    np.testing.assert_array_equal(node_class("x", row).row(), row)


def test_equal_nodes_are_one_class_and_absent_rows_none() -> None:
    a, b = _node(3920, 2**33), _node(7910, 2**34)
    classes = node_classes(np.stack([a, b, a, np.zeros(NODE_COLUMNS)]))
    assert sorted((c.cores, count) for c, count in classes) == [(3.92, 2), (7.91, 1)]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    directory = tmp_path_factory.mktemp("twin") / "experience"
    fill_store(directory, 60)
    with ExperienceReader(directory) as reader:
        return list(reader.rows())


def test_each_bound_pod_arrives_once_as_it_asked(stored) -> None:
    pods = recorded_pods([*stored, *stored[:5]])
    assert len(pods.arrival_s) == 60
    assert (np.diff(pods.arrival_s) == 10).all()
    np.testing.assert_array_equal(pods.seconds, [60.0 * (1 + n % 5) for n in range(60)])
    first = stored[7].decision.pod
    assert (pods.cpu_milli[7], pods.memory[7], pods.kind[7]) == (
        first[P_CPU],
        first[P_MEMORY],
        first[P_CLASS],
    )
    np.testing.assert_allclose(pods.known[7], [0.5, first[P_IO_USE], first[P_SLA]])


def test_the_twins_pods_use_what_their_apps_are_known_to_use(stored) -> None:
    twin = scenario("one", _node(16_000, 2**36)[None], stored, 1200.0)
    pods = make_pods(twin, 7_000)
    assert len(pods) > 0
    np.testing.assert_allclose(pods[:, P_CPU_USE], pods[:, P_CPU] / 2)
    np.testing.assert_allclose(pods[:, P_SLA], 1.5)


def test_the_load_is_what_was_asked_of_the_scarcest_resource(stored) -> None:
    pods = recorded_pods(stored)
    classes = node_classes(_node(16_000, 2**40)[None])
    asked = (pods.cpu_milli * pods.seconds).sum() / 590 / 16_000
    assert offered_load(pods, classes) == pytest.approx(min(asked, LOAD[1]))
    assert offered_load(pods, node_classes(_node(10, 2**40)[None])) == LOAD[1]


def test_a_pod_without_a_request_counts_as_kube_scheduler_counts_it(stored) -> None:
    empty = [
        replace(s, decision=replace(s.decision, pod=np.where(np.arange(9) < 2, 0.0, s.decision.pod)))
        for s in stored
    ]
    pods = recorded_pods(empty)
    assert set(pods.cpu_milli) == {100.0}
    assert set(pods.memory) == {200.0 * 2**20}


def test_what_cannot_be_a_twin_is_told(stored) -> None:
    node = _node(16_000, 2**36)[None]
    with pytest.raises(InputError, match="fewer than"):
        scenario("one", node, stored[: FEWEST_PODS - 1], 1200.0)
    with pytest.raises(InputError, match="nodes"):
        scenario("one", np.zeros((2, NODE_COLUMNS)), stored, 1200.0)
    with pytest.raises(InputError, match="seconds"):
        scenario("one", node, stored, 0.0)
    assert (node[:, [N_CPU, N_MEMORY, N_EXISTS]] > 0).all()
