# SPDX-License-Identifier: Apache-2.0
"""The recorder's thread: calls from many threads, in order, bounded, and never an error to the caller."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from shoal_client.collect.measured import Measured
from shoal_client.experience import recorder as module
from shoal_client.experience.apps import AppHistory
from shoal_client.experience.reader import ExperienceReader
from shoal_client.experience.recorder import Recorder
from shoal_client.experience.settings import Settings
from shoal_client.experience.store import ExperienceStore
from shoal_client.metrics import REGISTRY
from shoal_client.state.changes import PodChange
from shoal_common.decide import observe
from shoal_common.reward import ObjectiveWeights
from shoal_common.tables import pod_row
from shoal_common.twin.batch import RewardHorizon


@pytest.fixture
def parts(tmp_path, make_world):
    """A recorder with a horizon of 0.2 s on a running store, and the cluster it watches."""
    with ExperienceStore(tmp_path) as store:
        live = make_world(store, nodes=80).live
        settings = Settings(horizon=RewardHorizon(0.2, 0.1))
        yield Recorder(store, live, AppHistory(store.key), settings), store, live


def _decide(recorder, live, pod, chosen=2):
    cluster, row = live.cluster, pod_row(pod)
    mask = cluster.feasible(row)[:, None]
    obs = observe(cluster, row, mask, ObjectiveWeights().array())
    recorder.decided(
        pod, obs, cluster.names, chosen=chosen, source="extender", mode="active", policy="digest",
        logits=np.zeros((len(cluster), 1), np.float32), propensities=mask / mask.sum(),
    )  # fmt: skip


def _rows(store):
    with ExperienceReader(store.path.parent) as reader:
        return list(reader.rows())


def _life(recorder, live, pod, node):
    now = time.monotonic()
    recorder.pod_changed(PodChange(None, pod, now))
    _decide(recorder, live, pod)
    bound = replace(pod, node_name=node, phase="Running")
    recorder.pod_changed(PodChange(pod, bound, time.monotonic()))
    return bound


def test_a_decision_is_on_disk_when_flush_says_so_and_closes_by_time_alone(parts, new_pod):
    recorder, store, live = parts
    with recorder:
        _life(recorder, live, new_pod(), "node-2")
        recorder.measured({"node-2": Measured(cpu_millicores=1_000.0)})
        assert recorder.flush(10)
        (row,) = _rows(store)
        assert len(row.decision.seen) == 64
        assert store.key.name("node-2") in row.decision.seen.names
        deadline = time.monotonic() + 10
        while _rows(store)[0].result is None and time.monotonic() < deadline:
            time.sleep(0.02)
            store.flush(1)
        (row,) = _rows(store)
        assert row.result.outcome == "running"
        assert row.result.reward is not None
        assert row.result.propensity > 0


def test_a_bind_to_a_node_that_was_not_kept_brings_it_in(parts, new_pod):
    recorder, store, live = parts
    with recorder:
        for n in range(40):
            _life(recorder, live, new_pod(f"u{n}"), f"node-{40 + n}")
        assert recorder.flush(10)
        time.sleep(0.3)
        recorder.stop()
    store.flush(5)
    for row, n in zip(_rows(store), range(40), strict=True):
        seen, action = row.decision.seen, row.result.action if row.result else None
        assert store.key.name(f"node-{40 + n}") in seen.names
        if action is not None:
            assert seen.names[action] == store.key.name(f"node-{40 + n}")


def test_callers_in_many_threads_lose_nothing(parts, new_pod):
    recorder, store, live = parts

    def serve(first):
        for n in range(first, first + 25):
            _decide(recorder, live, new_pod(f"u{n}"))

    with recorder:
        threads = [threading.Thread(target=serve, args=(25 * t,)) for t in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert recorder.flush(20)
    rows = _rows(store)
    assert {row.decision.uid for row in rows} == {f"u{n}" for n in range(100)}
    assert [row.decision.id for row in rows] == list(range(1, 101))


def test_beyond_the_line_decisions_are_dropped_and_counted(parts, new_pod, monkeypatch):
    recorder, store, live = parts
    monkeypatch.setattr(module, "WAITING_BYTES", 30_000)  # two decisions of 80 candidates, or many refusals
    label = {"line": "recorder"}
    before = REGISTRY.get_sample_value("shoal_experience_dropped_total", label) or 0
    for n in range(5):  # nobody takes them yet
        _decide(recorder, live, new_pod(f"u{n}"))
    with recorder:
        assert recorder.flush(10)
        assert len(_rows(store)) == 2
        assert REGISTRY.get_sample_value("shoal_experience_dropped_total", label) - before == 3
        _decide(recorder, live, new_pod("later"))
        recorder.refused(new_pod("r"), "why", source="extender", mode="active", policy="d")
        assert recorder.flush(10)
    assert len(_rows(store)) == 4


def test_an_event_that_cannot_be_taken_up_does_not_end_the_recording(parts, new_pod, caplog):
    recorder, store, live = parts
    before = REGISTRY.get_sample_value("shoal_experience_errors_total") or 0
    with recorder:
        recorder.measured({"node-1": object()})
        recorder.pod_changed(PodChange(None, object(), 0.0))
        _decide(recorder, live, new_pod())
        assert recorder.flush(10)
    assert len(_rows(store)) == 1
    assert REGISTRY.get_sample_value("shoal_experience_errors_total") - before >= 1
    assert "cannot be taken up" in caplog.text
