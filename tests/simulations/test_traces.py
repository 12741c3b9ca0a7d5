# SPDX-License-Identifier: Apache-2.0
"""The readers: what they read from small tables; each kind of bad row is named by line and column."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest

from shoal_common.errors import InputError
from shoal_simulations.traces import borg2011, borg2019, openb
from shoal_simulations.traces.catalogue import detect, read

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\nn1,32000,131072,0,\n"
POD_HEADER = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,"
    "gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
)
POD = "p0,12000,16384,1,460,V100M16|T4,LS,Running,10,100,15\n"
WAITING = "p1,6000,12288,0,0,,BE,Pending,20,50,\n"
TASKS = """0,2,3,0,415,0,user1,3,9,,,,
600,,3,1,,0,user2,0,0,0.125,0.07446,0.0004,0
605,,3,1,77,1,user2,0,0,0.125,0.07446,0.0004,1
1000605,,3,1,77,4,user2,0,0,0.125,0.07446,0.0004,0
"""
MACHINES = "0,5,0,Hof,0.5,0.2493\n0,6,0,Hof,1,1\n900,6,1,Hof,,\n"
CELLS = """time_us,cell,event,collection_id,instance_index,machine_id,priority,scheduling_class,cpu_req,\
mem_req,avg_cpu,avg_mem,failed
0,5,ENABLE,212,919,29,117,1.0,0.0037,0.0034,0.0,0.0000009,0
7,8,FAIL,275,369,20,200,3.0,0.5,0.25,0.1,0.1,1
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_openb_nodes(tmp_path: Path) -> None:
    nodes = openb.read_nodes(write(tmp_path / "nodes.csv", NODES))
    assert nodes.names == ("n0", "n1")
    assert nodes.gpus.tolist() == [2, 0]
    assert nodes.model.tolist() == [0, -1]
    assert nodes.models == ("P100",)


def test_openb_pods_with_times(tmp_path: Path) -> None:
    pods = openb.read_pods(write(tmp_path / "pods.csv", POD_HEADER + POD + WAITING))
    assert pods.timed
    assert pods.duration_s.tolist() == [85, 30]
    assert pods.wait_s[0] == 5
    assert math.isnan(pods.wait_s[1])
    assert pods.gpu_specs == ("", "V100M16|T4")
    assert pods.gpu_spec.tolist() == [1, 0]
    assert pods.service_class.tolist() == [3, 0]


def test_openb_pods_of_five_columns(tmp_path: Path) -> None:
    table = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np0,12000,16384,8,1000\n"
    pods = openb.read_pods(write(tmp_path / "pods.csv", table))
    assert not pods.timed
    assert pods.num_gpu.tolist() == [8]
    assert pods.service_class.tolist() == [-1]


def test_borg2011_tasks_from_gz(tmp_path: Path) -> None:
    path = tmp_path / "part-00000-of-00500.csv.gz"
    path.write_bytes(gzip.compress(TASKS.encode()))
    events = list(borg2011.task_events(path))
    assert events[0].machine == 415
    assert events[0].cpu is None
    assert events[2].different_machines
    found, pods = read(path)
    assert found.name == "borg2011-tasks"
    assert len(pods) == 2
    assert isinstance(pods, type(borg2011.read_pods(path)))
    assert pods.cpu_milli.tolist() == [0, 8000]
    np.testing.assert_allclose(pods.duration_s, [math.nan, 1.0])
    np.testing.assert_allclose(pods.wait_s, [math.nan, 5e-6])


def test_borg2011_machines_at_time_zero(tmp_path: Path) -> None:
    path = write(tmp_path / "machines.csv", MACHINES)
    nodes = borg2011.read_nodes(path)
    assert nodes.cpu_milli.tolist() == [32_000, 64_000]
    assert detect(path).name == "borg2011-machines"


def test_borg2019_sample(tmp_path: Path) -> None:
    path = write(tmp_path / "sample.csv", CELLS)
    pods = borg2019.read_pods(path)
    assert pods.tenant.tolist() == [4, 7]
    assert pods.cpu_milli.tolist() == [237, 32_000]
    assert detect(path).name == "borg2019-sample"


def edit(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new, 1)


PODS = POD_HEADER + POD + WAITING

BROKEN = [
    ("missing column", edit(NODES, "memory_mib", "memory"), 1, "memory_mib"),
    ("no row", POD_HEADER, 1, "rows"),
    ("empty file", "", 1, "rows"),
    ("too few fields", edit(NODES, ",0,\n", "\n"), 3, "gpu"),
    ("too many fields", edit(NODES, "P100", "P100,x"), 2, "model"),
    ("not a number", edit(PODS, "16384", "16Gi"), 2, "memory_mib"),
    ("grouped digits", edit(PODS, "p0,12000", "p0,12_000"), 2, "cpu_milli"),
    ("negative", edit(PODS, "p0,12000", "p0,-1"), 2, "cpu_milli"),
    ("more than a device", edit(PODS, ",460,", ",1460,"), 2, "gpu_milli"),
    ("share of two devices", edit(PODS, ",1,460,", ",2,460,"), 2, "gpu_milli"),
    ("GPU of no device", edit(PODS, ",1,460,", ",0,460,"), 2, "gpu_milli"),
    ("device without GPU", edit(PODS, ",0,0,", ",1,0,"), 3, "gpu_milli"),
    ("unknown QoS", edit(PODS, ",BE,", ",best,"), 3, "qos"),
    ("name twice", edit(PODS, "p1,", "p0,"), 3, "name"),
    ("deleted before it started", edit(PODS, ",100,15", ",12,15"), 2, "deletion_time"),
    ("scheduled before creation", edit(PODS, ",100,15", ",100,9"), 2, "scheduled_time"),
    ("GPUs without a model", edit(NODES, "P100", ""), 2, "model"),
    ("time runs back", edit(TASKS, "605,", "599,"), 3, "time"),
    ("unknown event", edit(TASKS, ",77,4,", ",77,9,"), 4, "event type"),
    ("not finite", edit(TASKS, "0.125", "nan"), 2, "CPU request"),
    ("beyond any machine", edit(TASKS, "0.125", "1e300"), 2, "CPU request"),
    ("machine of no number", edit(TASKS, "415", "m415"), 1, "machine ID"),
    ("unknown cell", edit(CELLS, "7,8,", "7,9,"), 3, "cell"),
    ("broken class", edit(CELLS, "117,1.0", "117,1.5"), 2, "scheduling_class"),
    ("unknown table", "a,b\n1,2\n", 1, "header"),
]


@pytest.mark.parametrize(("text", "line", "column"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN])
def test_a_bad_row_is_named_by_file_line_and_column(
    tmp_path: Path, text: str, line: int, column: str
) -> None:
    path = write(tmp_path / "trace.csv", text)
    with pytest.raises(InputError) as caught:
        read(path)
    assert caught.value.where == f"{path}:{line}"
    assert caught.value.field == column
    assert "\n" not in str(caught.value)


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read(tmp_path / "none.csv")
    whole = gzip.compress("".join(f"{i},,3,{i},,0,user,0,0,,,,\n" for i in range(900)).encode())
    (tmp_path / "cut.csv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="gzip"):
        read(tmp_path / "cut.csv.gz")
    (tmp_path / "plain.csv.gz").write_text(NODES)
    with pytest.raises(InputError, match="gzip"):
        read(tmp_path / "plain.csv.gz")
    (tmp_path / "latin.csv").write_bytes(NODES.replace("P100", "P\xe9").encode("latin-1"))
    with pytest.raises(InputError, match="UTF-8"):
        read(tmp_path / "latin.csv")
