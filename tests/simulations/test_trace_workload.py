# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from shoal_common.errors import InputError
from shoal_common.gate import evaluate
from shoal_common.reward import ObjectiveWeights
from shoal_simulations.fleet import load_fleet

HEAD = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,"
    "creation_time,deletion_time,scheduled_time"
)
FLEET = """
[fleet]
name = "traced"
[privacy]
enabled = false
[[clusters]]
name = "one"
nodes = [{{ class = "gpu", count = 4 }}]
{work}
"""


def fleet_file(folder: Path, work: str) -> str:
    path = folder / "fleet.toml"
    path.write_text(FLEET.format(work=work))
    return str(path)


def pod_list(folder: Path) -> None:
    rows = [
        f"p{i},{1000 + 500 * (i % 3)},{2048},{i % 2},{500 * (i % 2)},,{'LS' if i % 5 else 'BE'},Running,"
        f"{100 * i},{100 * i + 400},{100 * i + 1}"
        for i in range(60)
    ]
    rows.append("giant,96000,2048,0,0,,BE,Running,10,20,11")  # fits no node of the cluster
    (folder / "pods.csv").write_text("\n".join([HEAD, *rows]) + "\n")


def test_a_fleet_runs_on_a_pod_list_beside_it(tmp_path: Path) -> None:
    pod_list(tmp_path)
    fleet = load_fleet(fleet_file(tmp_path, 'trace = { path = "pods.csv", format = "openb" }'))
    (scenario,) = fleet.scenarios()
    assert scenario.recorded is not None
    assert scenario.recorded.cpu_milli.max() <= 2000
    outcome = evaluate([scenario], [9000], ObjectiveWeights(), "kube@1.36")["one"][0]
    assert outcome.success_rate > 0.9
    assert np.isfinite(outcome.objective)


@pytest.mark.parametrize(
    ("work", "field"),
    [
        ('trace = { path = "nowhere.csv", format = "openb" }', "clusters[0].trace.path"),
        ('trace = { path = "pods.csv", format = "swf" }', "clusters[0].trace.format"),
        ("load = 0.5", "clusters[0]"),
    ],
)
def test_a_wrong_trace_is_one_line(tmp_path: Path, work: str, field: str) -> None:
    pod_list(tmp_path)
    with pytest.raises(InputError) as caught:
        load_fleet(fleet_file(tmp_path, work))
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


@pytest.mark.skipif("SHOAL_DATA" not in os.environ, reason="SHOAL_DATA names no folder with real traces")
@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("openb/openb_pod_list_default.csv", "openb"),
        ("google_borg_2011/task_events/part-00000-of-00500.csv.gz", "borg-2011"),
    ],
)
def test_real_traces_become_arrivals(tmp_path: Path, path: str, form: str) -> None:
    work = f'trace = {{ path = "$SHOAL_DATA/{path}", format = "{form}" }}'
    (scenario,) = load_fleet(fleet_file(tmp_path, work)).scenarios()
    outcomes = evaluate([scenario], [9000, 9001], ObjectiveWeights(), "kube@1.36")["one"]
    assert all(o.success_rate > 0.3 and o.objective < 0 for o in outcomes)
