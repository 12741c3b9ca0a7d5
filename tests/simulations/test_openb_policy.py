# SPDX-License-Identifier: Apache-2.0
"""A policy artifact in the openb replay: kept tokens equal a full encoding, and the command runs it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from shoal_common.cli import main
from shoal_common.policy import PolicyArtifact
from shoal_common.scorers import fgd
from shoal_simulations import openb
from shoal_simulations.openb_policy import PolicyOnOpenb
from shoal_simulations.traces.openb import read_nodes, read_pods

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,32000,90000,2,T4\nn1,64000,90000,8,G2\nn2,64000,90000,0,\n"
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,\
scheduled_time
p0,4000,9000,1,500,,LS,Running,0,10,0
p1,8000,9000,2,1000,,LS,Running,5,50,6
p2,2000,9000,0,0,,BE,Running,9,20,9
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    from shoal_common.nn.set_attention import SetActor

    path = tmp_path_factory.mktemp("openb")
    (path / "nodes.csv").write_text(NODES)
    (path / "pods.csv").write_text(PODS)
    torch.manual_seed(0)
    PolicyArtifact.save(path / "artifact", SetActor(16), {"test": True})
    return path


def test_kept_tokens_equal_a_full_encoding(folder: Path) -> None:
    nodes, pods = read_nodes(folder / "nodes.csv"), read_pods(folder / "pods.csv")
    cluster = openb.prepare(nodes, pods, openb.Order(np.arange(3), np.arange(3)))
    kept = PolicyOnOpenb(cluster, folder / "artifact")
    fresh = openb.prepare(nodes, pods, openb.Order(np.arange(3), np.arange(3)))
    placed: list[tuple[int, int, int]] = []
    for step in range(12):
        s = int(cluster.spec_of_pod[step % 3])
        mask = fgd.feasible_nodes(cluster.state, s)
        scores = kept(cluster, s, mask)
        again = PolicyOnOpenb(fresh, folder / "artifact")(cluster, s, mask)
        np.testing.assert_allclose(scores[mask], again[mask], atol=1e-5)
        assert np.isfinite(scores[mask]).all()
        if step % 4 == 3:
            fgd.remove(cluster.state, *placed.pop(0))
        else:
            node = int(np.where(mask, scores, -np.inf).argmax())
            devices = fgd.choose_devices(fgd.BEST_FIT, cluster.state, s, node, 0.0)
            fgd.place(cluster.state, s, node, devices)
            placed.append((s, node, devices))


@pytest.mark.parametrize("extra", [[], ["--lifetimes"]])
def test_replay_by_an_artifact(folder: Path, extra: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    lists = ["--nodes", str(folder / "nodes.csv"), "--pods", str(folder / "pods.csv")]
    with pytest.raises(SystemExit) as caught:
        main(["replay", *lists, "--scorer", str(folder / "artifact"), "--json", *extra])
    assert caught.value.code == 0
    report = json.loads(capsys.readouterr().out)
    assert report["pods"] >= 3
    assert report["allocation"]
