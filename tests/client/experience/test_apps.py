# SPDX-License-Identifier: Apache-2.0
"""Which pods are of one app, and what is learned of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal_client.experience.apps import MOST_APPS, AppHistory, app_name
from shoal_client.experience.local_key import LocalKey
from shoal_common.pods import PodRecord


def _pod(name="p", **fields):
    return PodRecord(name=name, namespace="team", **fields)


@pytest.fixture
def apps(tmp_path):
    return AppHistory(LocalKey(tmp_path / "local.key"))


@pytest.mark.parametrize(
    ("pod", "name"),
    [
        (
            _pod(
                owner_kind="ReplicaSet",
                owner_name="web-6d4b75cb6d",
                labels={"pod-template-hash": "6d4b75cb6d"},
            ),
            "team/ReplicaSet/web",
        ),
        (_pod(owner_kind="ReplicaSet", owner_name="bare"), "team/ReplicaSet/bare"),
        (_pod(owner_kind="Job", owner_name="backup-29312345"), "team/Job/backup"),
        (_pod(owner_kind="Job", owner_name="train-v2"), "team/Job/train-v2"),
        (_pod(owner_kind="StatefulSet", owner_name="db"), "team/StatefulSet/db"),
        (_pod(annotations={"shoal.dev/app": "etl"}, owner_kind="Job", owner_name="x-1"), "team/etl"),
        (_pod("lonely"), "team//lonely"),
    ],
)
def test_the_app_of_a_pod(pod, name):
    assert app_name(pod) == name


def test_means_follow_and_say_nothing_before_enough_samples(apps):
    pod = _pod()
    assert apps(pod) is None
    apps.used(pod, 1_000.0, None)
    assert apps(pod).cpu_use is None
    for _ in range(2):
        apps.used(pod, 1_000.0, 2.0)
    assert apps(pod).cpu_use == pytest.approx(1_000.0)
    assert apps(pod).duration_seconds is None
    assert apps(pod).samples == 3
    for _ in range(100):
        apps.used(pod, 3_000.0, 2.0)
    assert apps(pod).cpu_use == pytest.approx(3_000.0, rel=1e-3)
    assert apps(pod).io_use == pytest.approx(2.0, rel=1e-3)
    for seconds in (100.0, 200.0, 300.0):
        apps.ended(pod, seconds)
    assert apps(pod).duration_seconds == pytest.approx(200.0)
    assert apps.mean_seconds(pod) == pytest.approx(200.0)


def test_what_is_no_measurement_changes_nothing(apps):
    pod = _pod()
    apps.used(pod, math.nan, 1.0)
    apps.used(pod, -1.0, 1.0)
    apps.ended(pod, math.nan)
    apps.ended(pod, 0.0)
    assert apps(pod) is None


def test_apps_are_bounded_and_come_back_from_their_rows(apps, tmp_path):
    for n in range(MOST_APPS + 5):
        apps.used(_pod(f"p{n}"), 1.0, None)
    assert len(apps) == MOST_APPS
    assert apps(_pod("p0")) is None
    again = AppHistory(LocalKey(tmp_path / "local.key"), apps.rows())
    assert again.rows() == apps.rows()


def test_shares_of_nodes_settle_to_what_apps_use(apps):
    """Three apps of known use meet in changing company; only their sum is ever measured."""
    rng, truth = np.random.default_rng(0), np.array([500.0, 1_000.0, 4_000.0])
    pods = [_pod(f"app-{n}") for n in range(3)]
    believed = np.array([2_000.0, 2_000.0, 2_000.0])  # what each requests
    for _ in range(400):
        on_node = rng.choice(3, rng.integers(1, 6))
        known = np.array(
            [
                apps(pods[n]).cpu_use if apps(pods[n]) and apps(pods[n]).cpu_use else believed[n]
                for n in on_node
            ]
        )
        total = truth[on_node].sum()
        for n, use in zip(on_node, known, strict=True):
            apps.used(pods[n], use * total / known.sum(), None)
    learned = np.array([apps(pod).cpu_use for pod in pods])
    np.testing.assert_allclose(learned, truth, rtol=0.15)
