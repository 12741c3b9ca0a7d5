# SPDX-License-Identifier: Apache-2.0
"""Records as rows: classes, what is written on nodes and pods, what is known of apps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal_common.cluster import (
    MAX_GPUS,
    MAX_ZONES,
    N_CPU,
    N_DPU,
    N_GPUS,
    N_IDLE_WATTS,
    N_MAX_WATTS,
    N_MEMORY,
    N_SPEED,
    N_ZONES,
    NODE_COLUMNS,
    P_CLASS,
    P_CPU,
    P_CPU_USE,
    P_DURATION,
    P_GPU,
    P_GPUS,
    P_IO_USE,
    P_SLA,
    U_CPU,
    U_CPU_WANTED,
    U_GPU,
    U_LOAD,
    U_UP,
    USE_COLUMNS,
)
from shoal_common.fields import Field
from shoal_common.manifests import read_node, read_pod
from shoal_common.pods import NodeRecord, PodRecord
from shoal_common.tables import App, fill, fill_node, pod_class, pod_row

GPU = "nvidia.com/gpu"


def pod(requests: dict[str, Any] | None = None, **metadata: Any) -> PodRecord:
    containers = [{"name": "c", "resources": {"requests": requests or {}}}]
    return read_pod(
        Field("t", "", {"metadata": {"name": "p", **metadata}, "spec": {"containers": containers}})
    )


def node(
    annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None, **room: Any
) -> NodeRecord:
    metadata = {"name": "n", "annotations": annotations or {}, "labels": labels or {}}
    usual = {"cpu": "4", "memory": "8Gi", "pods": "110", **room}
    return read_node(Field("t", "", {"metadata": metadata, "status": {"allocatable": usual}}))


def owned(kind: str) -> dict[str, Any]:
    return {"ownerReferences": [{"kind": kind, "name": "o", "uid": "o"}]}


@pytest.mark.parametrize(
    ("record", "number"),
    [
        (pod(), 0),
        (pod(**owned("ReplicaSet")), 0),
        (pod(**owned("Job")), 1),
        (pod(**owned("Workflow")), 1),
        (pod({GPU: 1}, **owned("Job")), 3),
        (pod({"nvidia.com/mig-1g.5gb": 1}), 3),
        (pod({GPU: 1}, annotations={"shoal.dev/class": "io"}), 2),
        (pod(annotations={"shoal.dev/class": "nonsense"}), 0),
    ],
)
def test_classes(record: PodRecord, number: int) -> None:
    assert pod_class(record) == number
    assert pod_row(record)[P_CLASS] == number


def test_a_pod_of_an_unknown_app_uses_what_it_requests() -> None:
    row = pod_row(pod({"cpu": "2", GPU: 2}))
    assert [row[c] for c in (P_CPU, P_CPU_USE, P_IO_USE, P_GPU, P_GPUS)] == [2000, 2000, 0, 1000, 2]
    assert (row[P_SLA], row[P_DURATION]) == (1.5, 600)


def test_what_is_known_of_an_app_is_used() -> None:
    row = pod_row(pod({"cpu": "2"}), App(cpu_use=333.3333, io_use=1.5, duration_seconds=60.0, sla=2.0))
    assert [row[c] for c in (P_IO_USE, P_SLA, P_DURATION)] == [1.5, 2.0, 60]
    assert row[P_CPU_USE] == pytest.approx(333.3333, abs=1e-3)
    assert row[P_CPU_USE] * 1024 % 1 == 0  # on the grid: sums are exact
    assert pod_row(pod({"cpu": "2"}), App(cpu_use=float("nan")))[P_CPU_USE] == 2000


def test_the_slowdown_that_is_allowed_is_annotated() -> None:
    assert pod_row(pod(annotations={"shoal.dev/slowdown": "3"}), App(sla=2.0))[P_SLA] == 3
    assert pod_row(pod(annotations={"shoal.dev/slowdown": "x"}), App(sla=2.0))[P_SLA] == 2
    assert pod_row(pod(annotations={"shoal.dev/slowdown": "nan"}))[P_SLA] == 1.5


def test_case_36_a_pod_without_requests_uses_what_scores_count_it_with() -> None:
    row = pod_row(pod())
    assert (row[P_CPU], row[P_CPU_USE]) == (0, 100)  # it fits where nothing is left, but it is load
    tables = np.zeros(NODE_COLUMNS), np.zeros(USE_COLUMNS), np.zeros(MAX_GPUS), np.zeros((MAX_ZONES, 2))
    fill(node(), [pod()] * 3, *tables)
    assert [tables[1][c] for c in (U_CPU, U_CPU_WANTED, U_LOAD)] == [0, 300, 300]


def test_what_is_written_on_a_node() -> None:
    row = np.ones(NODE_COLUMNS)
    fill_node(
        node({"shoal.dev/speed": "1.4", "shoal.dev/idle-watts": "90"}, {"shoal.dev/dpu": "1"}, **{GPU: 4}),
        row,
    )
    assert [row[c] for c in (N_CPU, N_MEMORY, N_GPUS)] == [4000, 8 * 2**30, 4]
    assert [row[c] for c in (N_SPEED, N_IDLE_WATTS, N_MAX_WATTS, N_DPU, N_ZONES)] == [1.4, 90, 300, 1, 1]


@pytest.mark.parametrize("text", ["", "fast", "nan", "inf", "1e999", "-"])
def test_what_is_no_number_is_not_read(text: str) -> None:
    row = np.zeros(NODE_COLUMNS)
    fill_node(node({"shoal.dev/speed": text}), row)
    assert row[N_SPEED] == 1


def test_numbers_are_held_within_bounds() -> None:
    row = np.zeros(NODE_COLUMNS)
    settings = {"shoal.dev/speed": "1000", "shoal.dev/max-watts": "5", "shoal.dev/numa-zones": "9"}
    fill_node(node(settings), row)
    assert (row[N_SPEED], row[N_ZONES]) == (20, MAX_ZONES)
    assert row[N_MAX_WATTS] > row[N_IDLE_WATTS]


def test_zones_share_the_free_room_where_nobody_reports_it() -> None:
    tables = np.zeros(NODE_COLUMNS), np.zeros(USE_COLUMNS), np.zeros(MAX_GPUS), np.zeros((MAX_ZONES, 2))
    fill(node({"shoal.dev/numa-zones": "2"}, cpu="5", memory="4"), [pod({"cpu": "2"})], *tables)
    assert tables[3][:3, 0].tolist() == [1500, 1500, 0]


def test_more_devices_than_columns_show_the_freest() -> None:
    tables = np.zeros(NODE_COLUMNS), np.zeros(USE_COLUMNS), np.zeros(MAX_GPUS), np.zeros((MAX_ZONES, 2))
    fill(node(**{GPU: 10}), [pod({GPU: 4})], *tables)
    assert tables[2].tolist() == [0, 0, 1000, 1000, 1000, 1000, 1000, 1000]
    assert (tables[0][N_GPUS], tables[1][U_GPU], tables[1][U_UP]) == (8, 2000, 1)
