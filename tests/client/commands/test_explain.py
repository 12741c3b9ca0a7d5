# SPDX-License-Identifier: Apache-2.0
"""`shoal client explain` against the emulated API: recorded decisions, decisions of now, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from shoal_client.commands.client import app
from shoal_client.diagnosis.explanation import effects
from shoal_client.experience.records import DecisionRecord, Result, Seen
from shoal_client.experience.store import Choice, ExperienceStore
from shoal_common.cli import main
from shoal_common.cluster import POD_COLUMNS
from shoal_common.nn.set_attention import SetActor
from shoal_common.observation import FC, FN, FP, FT, NODE_FEATURES, Observation
from shoal_common.policy import PolicyArtifact
from shoal_common.reward import ObjectiveWeights
from shoal_common.scorers.artifact import ArtifactScorer
from shoal_simulations.control_plane import ApiServer, node, pod

NODES = ("n1", "n2", "n3", "full")


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    directory = tmp_path_factory.mktemp("explain") / "policy"
    torch.manual_seed(1)
    PolicyArtifact.save(directory, SetActor(8), {"version": "v1"})
    return directory


@pytest.fixture(scope="module")
def seen(policy):
    """Four candidates, three of them feasible, as the policy scores them."""
    rng = np.random.default_rng(5)
    mask = np.array([[True], [True], [True], [False]])
    shapes = {"node": (4, FN), "pair": (4, FP), "task": (FT,), "ctx": (FC,)}
    parts = {name: rng.random(shape).astype(np.float16) for name, shape in shapes.items()}
    batch = {name: part.astype(np.float32)[None] for name, part in parts.items()}
    obs = Observation(
        **batch, w=ObjectiveWeights().array()[None], mask=mask[None], plugin=np.zeros((1, 4, 0), np.float32)
    )
    logits = ArtifactScorer(policy).score(obs).logits[0]
    chances = np.where(mask, 1 / 3, 0.0).astype(np.float32)
    return Seen(**parts, mask=mask, logits=logits, propensity=chances, names=NODES)


@pytest.fixture
def cluster(tmp_path):
    with ApiServer() as api:
        for name in NODES:
            api.create("nodes", node(name, cpu="8" if name != "full" else "1", memory="32Gi"))
        api.kubeconfig(tmp_path / "kubeconfig")
        yield api


def _record(folder, policy, seen, uid, best, mode="active"):
    digest = str(ArtifactScorer(policy).manifest["digest"])
    with ExperienceStore(folder) as store:
        number = store.next_id()
        store.decided(
            DecisionRecord(
                number, uid, 1, 1.8e9, "extender", "default-scheduler", mode, digest, "t", "a",
                np.zeros(POD_COLUMNS), seen, best,
            )
        )  # fmt: skip
        store.bound(number, NODES[best], 1.8e9, Choice(best, 1 / 3))
        store.closed(number, Result("running", node=NODES[best], reward=(-0.1, 0.0, -0.2, 0.0)), final=False)
        assert store.flush(10)


def _run(tmp_path, *options):
    return CliRunner().invoke(app, ["explain", *options, "--kubeconfig", str(tmp_path / "kubeconfig")])


def test_a_recorded_decision_is_told_as_it_was_made(tmp_path, cluster, policy, seen):
    made = cluster.create("pods", pod("web", cpu="2"))
    best = int(np.where(seen.mask, seen.logits, -np.inf)[:, 0].argmax())
    cluster.bind("web", NODES[best])
    _record(tmp_path / "store", policy, seen, made["metadata"]["uid"], best)
    options = ["web", "--store", str(tmp_path / "store"), "--policy", str(policy)]
    done = _run(tmp_path, *options, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["pod"], told["node"], told["uid"]) == ("default/web", NODES[best], made["metadata"]["uid"])
    decision = told["decision"]
    assert (decision["source"], decision["mode"], decision["asked_by"]) == ("recorded", "active", "extender")
    assert (decision["chosen"], decision["taken"], decision["outcome"]) == (
        NODES[best],
        NODES[best],
        "running",
    )
    assert (decision["feasible"], decision["candidates"]) == (3, 4)
    scores = [c["score"] for c in decision["top"]]
    assert scores == sorted(scores, reverse=True)
    assert (decision["top"][0]["chosen"], decision["top"][0]["taken"]) == (True, True)
    assert decision["top"][0]["features"].keys() >= {f.name for f in NODE_FEATURES}
    assert decision["lead"] == pytest.approx(scores[0] - scores[1])
    assert decision["reward"] == {"util": -0.1, "qos": 0.0, "energy": -0.2, "penalty": 0.0}
    sizes = [abs(e["effect"]) for e in decision["effects"]]
    assert sizes[0] == max(sizes) > 0
    assert told["refusals"] == [{"reason": "Insufficient cpu", "nodes": 1, "examples": ["full"]}]
    text = _run(tmp_path, *options).stdout
    assert f"chose {NODES[best]}, placed on {NODES[best]}: running" in text
    assert f"why {NODES[best]} (it leads by " in text
    assert "cannot take it now: 1 (full): Insufficient cpu" in text


def test_of_another_policy_no_effects_are_told(tmp_path, cluster, policy, seen):
    made = cluster.create("pods", pod("web", cpu="2"))
    _record(tmp_path / "store", policy, seen, made["metadata"]["uid"], 0, mode="shadow")
    done = _run(tmp_path, "web", "--store", str(tmp_path / "store"), "--json")
    decision = json.loads(done.stdout)["decision"]
    assert decision["effects"] == []
    assert decision["mode"] == "shadow"
    assert len(decision["top"]) == 3


def test_a_node_that_is_gone_stays_a_hash(tmp_path, cluster, policy, seen):
    made = cluster.create("pods", pod("web", cpu="2"))
    _record(tmp_path / "store", policy, seen, made["metadata"]["uid"], 0)
    cluster.delete("nodes", "n1")
    decision = json.loads(_run(tmp_path, "web", "--store", str(tmp_path / "store"), "--json").stdout)[
        "decision"
    ]
    assert decision["chosen"].startswith("gone:")
    assert {c["node"] for c in decision["top"]} > {"n2", "n3"}


def test_a_pod_that_waits_is_decided_now(tmp_path, cluster, policy):
    cluster.create("pods", pod("web", cpu="2"))
    told = json.loads(_run(tmp_path, "web", "--policy", str(policy), "--json").stdout)
    assert (told["policy"]["name"], told["policy"]["serves"]) == ("", False)
    assert told["decision"]["source"] == "now"
    assert told["decision"]["chosen"] in {"n1", "n2", "n3"}
    assert told["decision"]["effects"]
    assert "would be decided now by" in _run(tmp_path, "web", "--policy", str(policy)).stdout


def test_without_store_and_policy_it_tells_what_the_api_says(tmp_path, cluster):
    cluster.create("pods", pod("web", cpu="200"))
    text = _run(tmp_path, "web").stdout
    assert "no decision is known" in text
    assert "cannot take it now: 4 (full, n1, n2, ...): Insufficient cpu" in text


def test_idle_gpus_that_are_of_no_use_are_told(tmp_path, cluster):
    cluster.create("nodes", node("g1", cpu="8", memory="32Gi", gpus=2))
    cluster.create("pods", pod("web", cpu="2", gpus=4))
    told = json.loads(_run(tmp_path, "web", "--json").stdout)
    assert (told["idle_milli_gpu"], told["unusable_milli_gpu"]) == (2000, 2000.0)
    assert "GPUs: 2 idle, 2.00 of them fragmented" in _run(tmp_path, "web").stdout


def test_an_effect_is_the_lead_without_the_feature(policy, seen):
    scorer, others = ArtifactScorer(policy), np.array([1, 2])
    told = {e.feature: e for e in effects(scorer, seen, 0, others)}
    name = NODE_FEATURES[3].name
    changed = seen.node.astype(np.float32)
    changed[0, 3] = changed[others, 3].mean()
    leads = []
    for nodes in (seen.node.astype(np.float32), changed):
        obs = Observation(
            node=nodes[None],
            pair=seen.pair.astype(np.float32)[None],
            task=seen.task.astype(np.float32)[None],
            ctx=seen.ctx.astype(np.float32)[None],
            w=ObjectiveWeights().array()[None],
            mask=seen.mask[None],
            plugin=np.zeros((1, 4, 0), np.float32),
        )
        logits = scorer.score(obs).logits[0, :, 0]
        leads.append(logits[0] - logits[others].max())
    assert told[name].effect == pytest.approx(leads[0] - leads[1], abs=1e-5)
    assert told[name].others == pytest.approx(changed[0, 3])


def test_no_such_pod_is_one_line(tmp_path, cluster, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["client", "explain", "nobody", "--kubeconfig", str(tmp_path / "kubeconfig")])
    assert caught.value.code == 2
    assert "default/nobody: pod: there is no such pod" in capsys.readouterr().err


def test_while_a_decision_is_open_the_api_says_where_the_pod_is(tmp_path, cluster, policy, seen):
    made = cluster.create("pods", pod("web", cpu="2"))
    digest = str(ArtifactScorer(policy).manifest["digest"])
    with ExperienceStore(tmp_path / "store") as store:
        record = DecisionRecord(
            store.next_id(), made["metadata"]["uid"], 1, 1.8e9, "extender", "default-scheduler", "active",
            digest, "t", "a", np.zeros(POD_COLUMNS), seen, 0,
        )  # fmt: skip
        store.decided(record)
        assert store.flush(10)
    cluster.bind("web", "n2")
    decision = json.loads(_run(tmp_path, "web", "--store", str(tmp_path / "store"), "--json").stdout)[
        "decision"
    ]
    assert (decision["taken"], decision["outcome"]) == ("n2", "open")
    assert [c["node"] for c in decision["top"] if c["taken"]] == ["n2"]


def test_the_scheduling_policy_in_force_is_told(tmp_path, cluster):
    crds = Path(__file__).parents[3] / "deploy" / "crds"
    for path in sorted(crds.glob("*.yaml")):
        cluster.create("customresourcedefinitions", msgspec.yaml.decode(path.read_bytes()))
    spec = {"mode": "Canary", "canaryPercent": 100}
    cluster.create(
        "schedulingpolicies",
        {
            "apiVersion": "shoal.dev/v1alpha1",
            "kind": "SchedulingPolicy",
            "metadata": {"name": "all"},
            "spec": spec,
        },
    )
    cluster.create("pods", pod("web", cpu="2"))
    told = json.loads(_run(tmp_path, "web", "--json").stdout)["policy"]
    assert told == {"name": "all", "mode": "Canary", "serves": True, "why": ""}
    assert "policy all, mode Canary: its scores reach kube-scheduler" in _run(tmp_path, "web").stdout
