# SPDX-License-Identifier: Apache-2.0
"""`shoal client replay`: a day of a store against a policy, offline."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from shoal_client.commands.client import app
from shoal_client.experience.store import ExperienceStore
from shoal_common.cli import main
from shoal_common.nn.set_attention import SetActor
from shoal_common.policy import PolicyArtifact

sys.path.insert(0, str(Path(__file__).parents[1]))
from live_store import fill_store

ALLOCATABLE = {"cpu": "15890m", "memory": "60Gi", "pods": "110"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A policy, a store of the last hour, and four nodes."""
    directory = tmp_path_factory.mktemp("replay")
    torch.manual_seed(0)
    PolicyArtifact.save(directory / "policy", SetActor(8), {"version": "v1"})
    fill_store(directory / "store", 60, day=time.time() - 3000)
    items = [
        {
            "metadata": {"name": f"node-{i}", "uid": f"u{i}", "resourceVersion": "1"},
            "status": {"allocatable": ALLOCATABLE, "conditions": [{"type": "Ready", "status": "True"}]},
        }
        for i in range(4)
    ]
    (directory / "nodes.json").write_text(json.dumps({"items": items}))
    return directory


def _run(folder, *options):
    base = ["replay", "--policy", str(folder / "policy"), "--store", str(folder / "store"), "--seeds", "3"]
    return CliRunner().invoke(
        app, [*base, "--nodes", str(folder / "nodes.json"), "--seconds", "600", *options]
    )


def test_it_answers_twice_in_one_document(folder):
    done = _run(folder, "--json", "--least-gain", "-1000")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert (document["decisions"], document["pods"], document["nodes"]) == (60, 60, 4)
    assert document["twin"]["passed"]
    assert document["twin"]["incumbent"] == "kube@1.36"
    assert document["off_policy"]["used"] == 60
    logged = np.mean([-0.25 * (n % 7) / 10 - 0.4 * (n % 3) / 10 - 0.025 for n in range(60)])
    assert document["off_policy"]["logged"]["value"] == pytest.approx(logged, abs=1e-5)


def test_a_policy_does_not_beat_itself(folder):
    done = _run(folder, "--incumbent", str(folder / "policy"))
    assert done.exit_code == 1
    assert "gain +0.00 % [+0.00 %, +0.00 %]: NOT passed" in done.stdout
    assert "off-policy, 60 decisions with known propensities" in done.stdout


def test_what_is_too_old_is_left_out_and_told(folder, tmp_path):
    with ExperienceStore(tmp_path / "empty"):
        pass
    with pytest.raises(SystemExit) as caught:
        main(
            ["client", "replay", "--policy", str(folder / "policy"), "--store", str(tmp_path / "empty"),
             "--nodes", str(folder / "nodes.json")]
        )  # fmt: skip
    assert caught.value.code == 2


@pytest.mark.parametrize(
    "options", [["--incumbent", "nobody"], ["--nodes", "/none"], ["--policy", "/none"], ["--seconds", "-1"]]
)
def test_wrong_input_is_one_line(folder, options, capsys):
    base = ["client", "replay", "--policy", str(folder / "policy"), "--store", str(folder / "store")]
    with pytest.raises(SystemExit) as caught:
        main([*base, "--nodes", str(folder / "nodes.json"), *options])
    assert caught.value.code == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
