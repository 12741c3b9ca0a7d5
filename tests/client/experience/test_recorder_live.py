# SPDX-License-Identifier: Apache-2.0
"""The recorder on the real state of a cluster: raw API objects in, transitions out."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_client.collect.measured import Measured
from shoal_client.experience.apps import AppHistory
from shoal_client.experience.reader import ExperienceReader
from shoal_client.experience.recorder import Recorder
from shoal_client.experience.settings import Settings
from shoal_client.experience.store import ExperienceStore
from shoal_client.experience.watched import watched
from shoal_client.state.live import LiveCluster
from shoal_common.cluster import N_EXISTS
from shoal_common.decide import observe
from shoal_common.reward import ObjectiveWeights
from shoal_common.tables import pod_row
from shoal_common.twin.batch import RewardHorizon

VERSION = iter(range(1, 10**9))


def _meta(name, uid):
    return {"name": name, "namespace": "default", "uid": uid, "resourceVersion": str(next(VERSION))}


def _node(n, cores=16, gpus=0):
    room = {"cpu": str(cores), "memory": "64Gi", "pods": "110"} | (
        {"nvidia.com/gpu": str(gpus)} if gpus else {}
    )
    ready = [{"type": "Ready", "status": "True"}]
    return {
        "metadata": _meta(f"node-{n}", f"n{n}"),
        "spec": {},
        "status": {"allocatable": room, "conditions": ready},
    }


def _pod(uid, cpu="2", node="", phase="Pending", reason="", gpus=0, **status):
    wanted = {"cpu": cpu, "memory": "1Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    container = {"name": "c", "image": "i", "resources": {"requests": wanted, "limits": wanted}}
    return {
        "metadata": _meta(f"pod-{uid}", uid),
        "spec": {"containers": [container], "schedulerName": "theirs"} | ({"nodeName": node} if node else {}),
        "status": {"phase": phase} | ({"reason": reason} if reason else {}) | status,
    }


def _cluster(nodes=4, clock=time.monotonic):
    live = LiveCluster(clock)
    live.replace("Node", [_node(n, gpus=8 * (n % 2)) for n in range(nodes)])
    live.replace("Pod", [])
    return live


@pytest.fixture
def parts(tmp_path):
    with ExperienceStore(tmp_path) as store:
        live, apps = _cluster(), AppHistory(store.key)
        live.apps = apps
        recorder = Recorder(store, live, apps, Settings(horizon=RewardHorizon(0.3, 0.2)))
        live.subscribe(recorder.pod_changed)
        with recorder:
            yield live, recorder, store


def _rows(recorder, store):
    assert recorder.flush(10)
    with ExperienceReader(store.path.parent) as reader:
        return list(reader.rows())


def _decide(live, recorder, uid, chosen):
    pod, cluster = live.pods[uid], live.cluster
    row = pod_row(pod)
    mask = cluster.feasible(row)[:, None]
    obs = observe(cluster, row, mask, ObjectiveWeights().array())
    recorder.decided(
        pod, obs, cluster.names, chosen=chosen, source="extender", mode="shadow", policy="digest"
    )


def test_lives_of_pods_as_the_api_tells_them(parts):
    live, recorder, store = parts
    live.apply("Pod", "ADDED", _pod("ours"))
    _decide(live, recorder, "ours", live.row("node-2"))
    live.apply("Pod", "MODIFIED", _pod("ours", node="node-2", phase="Running"))
    live.apply("Pod", "ADDED", _pod("theirs"))
    live.apply("Pod", "MODIFIED", _pod("theirs", node="node-1", phase="Running"))
    live.apply("Pod", "ADDED", _pod("refused"))
    live.apply("Pod", "MODIFIED", _pod("refused", node="node-1"))
    live.apply("Pod", "MODIFIED", _pod("refused", node="node-1", phase="Failed", reason="OutOfcpu"))
    recorder.measured({"node-2": Measured(cpu_millicores=1_000.0, watts=150.0)})
    live.replace("Pod", [_pod("ours", node="node-2", phase="Running")])  # the others have gone meanwhile
    deadline = time.monotonic() + 10
    while not all(row.result for row in _rows(recorder, store)) and time.monotonic() < deadline:
        time.sleep(0.05)
    rows = {row.decision.uid: row for row in _rows(recorder, store)}
    assert {uid: row.result.outcome for uid, row in rows.items()} == {
        "ours": "running", "theirs": "deleted", "refused": "rejected",
    }  # fmt: skip
    assert rows["ours"].result.learnable
    assert rows["theirs"].decision.scheduler == "theirs"
    assert rows["refused"].result.reward[3] < 0


@settings(deadline=None, derandomize=True, max_examples=30)
@given(
    others=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30), st.integers(0, 1)), max_size=8),
    node=st.integers(0, 3),
    gpus=st.integers(0, 1),
)
def test_what_is_seen_after_a_bind_is_what_was_there_before_it(others, node, gpus):
    now = [0.0]
    live = _cluster(clock=lambda: now[0])
    for i, (n, tenths, devices) in enumerate(others):
        live.apply(
            "Pod", "ADDED", _pod(f"o{i}", f"{tenths * 100}m", f"node-{n}", "Running", gpus=devices * (n % 2))
        )
    now[0] = 300.0  # the others have run for half of what a pod is taken to run
    gpus *= node % 2
    live.apply("Pod", "ADDED", _pod("u", gpus=gpus))
    row = pod_row(live.pods["u"])
    before = live.cluster
    mask = before.feasible(row)
    if not mask[live.row(f"node-{node}")]:
        return
    rows = np.flatnonzero(mask & (before.node[:, N_EXISTS] == 1))
    expected = observe(before, row, mask[rows][:, None], ObjectiveWeights().array(), rows=rows)
    live.apply("Pod", "MODIFIED", _pod("u", node=f"node-{node}", phase="Running", gpus=gpus))
    seen, at = watched(live, live.pods["u"], row, row, f"node-{node}", np.random.default_rng(0))
    assert seen.names == tuple(live.cluster.names[n] for n in rows)
    assert seen.names[at] == f"node-{node}"
    np.testing.assert_allclose(seen.node, expected.node[0], atol=1e-6)
    np.testing.assert_allclose(seen.pair, expected.pair[0], atol=1e-6)
    np.testing.assert_allclose(seen.ctx[:7], expected.ctx[0, :7], atol=1e-6)
