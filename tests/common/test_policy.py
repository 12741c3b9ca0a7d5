# SPDX-License-Identifier: Apache-2.0
"""A policy artifact: the same scores without torch, verified, shown."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from shoal_common.cli import main
from shoal_common.errors import InputError, SchemaMismatch
from shoal_common.learners.td3 import TD3, TD3Config
from shoal_common.policy import PolicyArtifact, privacy_statement
from shoal_common.scorers.artifact import digest
from shoal_simulations.experiments.action_interface import draw

torch.set_num_threads(1)
PRIVACY = {
    "epsilon": 2.5, "delta": 1e-5, "unit": "transition", "neighbouring": "add_remove", "simulation": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def learner():
    return TD3(TD3Config(width=8, profiles=2, quota_bounds=(0.5, 1.0)), 0)


@pytest.fixture(scope="module")
def saved(learner, tmp_path_factory):
    directory = tmp_path_factory.mktemp("policy")
    return PolicyArtifact.save(directory, learner.networks.actor, {"seed": 0}, PRIVACY)


@pytest.fixture
def copy(saved, tmp_path):
    return PolicyArtifact(shutil.copytree(saved.directory, tmp_path / "copy"), saved.manifest)


def observed(size, nodes):
    obs = draw(np.random.default_rng(nodes), size, nodes).obs
    obs.mask = np.repeat(obs.mask, 2, -1)
    obs.pair[:] = np.random.default_rng(1).random(obs.pair.shape)
    return obs


@pytest.mark.parametrize(("size", "nodes"), [(1, 1), (1, 7), (3, 16), (2, 300)])
def test_onnxruntime_and_torch_agree_for_any_number_of_nodes(learner, saved, size, nodes):
    obs = observed(size, nodes)
    mine, theirs = learner.score(obs), saved.scorer().score(obs)
    assert theirs.logits.shape == (size, nodes, 2)
    assert np.allclose(mine.logits, theirs.logits, atol=1e-5)
    assert np.allclose(mine.quotas, theirs.quotas, atol=1e-5)


def test_the_saved_parameters_make_the_same_actor(learner, saved):
    mine, theirs = (
        learner.networks.actor.state_dict(),
        PolicyArtifact.load(saved.directory).actor().state_dict(),
    )
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert saved.manifest["parameters"] == {
        "encoder": sum(a.size for n, a in saved.arrays().items() if n.startswith("encoder.")),
        "head": sum(a.size for n, a in saved.arrays().items() if n.startswith("head.")),
    }


@pytest.mark.parametrize("name", ["policy.safetensors", "encoder.onnx", "head.onnx"])
def test_a_changed_byte_is_refused_in_one_line(copy, name):
    path = copy.directory / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="a byte of the artifact changed") as raised:
        PolicyArtifact.load(copy.directory)
    assert "\n" not in str(raised.value)


def test_a_changed_manifest_is_refused(copy):
    manifest = {**copy.manifest, "privacy": {**PRIVACY, "epsilon": 0.1}}
    (copy.directory / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="digest"):
        PolicyArtifact.load(copy.directory)
    for text in ("{", "[]", "3", "{}", "[" * 100_000, "\xff"):
        (copy.directory / "manifest.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(InputError, match="is not a manifest"):
            PolicyArtifact.load(copy.directory)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_not_saved(tmp_path, value):
    actor = TD3(TD3Config(width=8), 0).networks.actor
    actor.head.logit.weight.data[0, 0] = value
    with pytest.raises(InputError, match=r"head\.logit\.weight is not finite"):
        PolicyArtifact.save(tmp_path / "policy", actor, {})
    assert not (tmp_path / "policy").exists()


@pytest.mark.parametrize("other", ["0" * 64, 7, None])
def test_another_schema_is_refused(copy, other):
    manifest = {**copy.manifest, "schema_hash": other}
    manifest["digest"] = digest(copy.directory, manifest)
    (copy.directory / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(SchemaMismatch, match="train again"):
        PolicyArtifact.load(copy.directory)


def test_what_is_no_artifact_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"manifest\.json: is missing"):
        PolicyArtifact.load(tmp_path)


def test_the_privacy_statement():
    text = privacy_statement({"privacy": PRIVACY})
    assert "epsilon 2.5 at delta 1.0e-05, unit: one transition, neighbours by add/remove" in text
    assert "not a guarantee" in text
    assert privacy_statement({"privacy": None}) == "trained without differential privacy"


def test_serving_imports_no_torch(saved):
    code = (
        "import sys; from pathlib import Path; from shoal_common.policy import PolicyArtifact; "
        "PolicyArtifact.load(Path(sys.argv[1])).scorer(); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(saved.directory)], check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()


def shoal(*arguments):
    code = "from shoal_common.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, "policy", *arguments], check=False, capture_output=True, text=True
    )


def test_the_commands_show_and_verify(copy):
    shown = json.loads(shoal("show", str(copy.directory), "--json").stdout)
    assert shown["digest"] == copy.manifest["digest"]
    assert shown["verified"] is True
    assert shown["signature"] is None
    assert "epsilon 2.5" in shown["privacy_statement"]
    assert copy.manifest["digest"][:8] in shoal("show", str(copy.directory)).stdout
    assert "verified" in shoal("verify", str(copy.directory)).stdout
    (copy.directory / "head.onnx").write_bytes(b"")
    refused = shoal("verify", str(copy.directory), "--json")
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert len(refused.stderr.strip().splitlines()) == 1


def test_an_artifact_scores_kubernetes_records(saved):
    from shoal_common.decide import snapshot_scorer
    from shoal_common.kube.snapshot import Snapshot
    from shoal_common.pods import NodeRecord, PodRecord
    from shoal_common.requests import PodResources

    rooms = {"small": 1000, "large": 8000, "none": 0}
    nodes = [
        NodeRecord(name=name, allocatable={"cpu": cpu, "memory": 2**34, "pods": 110})
        for name, cpu in rooms.items()
    ]
    pod = PodRecord(name="p", resources=PodResources())
    verdict = snapshot_scorer(saved.directory)(Snapshot(tuple(nodes)), pod)
    assert set(verdict.total) == set(verdict.feasible) == set(rooms)
    assert np.isfinite(list(verdict.total.values())).all()


def test_a_path_and_its_provenance_are_shown_as_they_are(saved, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(saved.directory, "[/x]", dirs_exist_ok=True)
    manifest = {**saved.manifest, "provenance": {"[/y]": "[/z]"}}
    manifest["digest"] = digest(tmp_path / "[" / "x]", manifest)
    (tmp_path / "[" / "x]" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(SystemExit) as left:
        main(["policy", "show", "[/x]"])
    out = capsys.readouterr().out
    assert left.value.code == 0
    assert "policy [/x]" in out
    assert "[/y]" in out
    assert "[/z]" in out
