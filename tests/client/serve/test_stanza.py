# SPDX-License-Identifier: Apache-2.0
"""The shipped stanzas under a scheduler whose extender is stopped: the default plugins place every pod."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from shoal_client.policies.registry import Policies
from shoal_client.serve.guard import Guard
from shoal_common.pods import PodRecord
from shoal_simulations.control_plane import ApiServer, Configuration, Scheduler, node, pod, read_configuration

STANZAS = sorted((Path(__file__).parents[3] / "deploy" / "kube-scheduler").glob("*.yaml"))


class Fresh:
    """Caches that are up to date."""

    synced = True

    def staleness_seconds(self, kind: str) -> float:
        return 0.0


def nobody_listens(configuration: Configuration) -> Configuration:
    """The configuration with its extenders at a port that refuses connections."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    away = tuple(
        replace(stanza, url_prefix=stanza.url_prefix.replace(":8888", f":{port}"))
        for stanza in configuration.extenders
    )
    return replace(configuration, extenders=away)


@pytest.mark.parametrize("path", STANZAS, ids=lambda path: path.stem)
def test_case_05_a_stopped_extender_leaves_pods_to_the_default_plugins(path: Path) -> None:
    configuration = read_configuration(path)
    assert configuration.extenders
    assert all(stanza.ignorable and stanza.node_cache_capable for stanza in configuration.extenders)
    with ApiServer() as api:
        for name in ("n1", "n2", "n3"):
            api.create("nodes", node(name))
        with Scheduler(api.url, nobody_listens(configuration)) as scheduler:
            for profile in configuration.profiles:
                made = pod(f"of-{profile}", spec={"schedulerName": profile})
                api.create("pods", made)
                made["metadata"] |= {"name": f"own-{profile}", "namespace": "shoal-system"}
                api.create("pods", made)
            assert api.wait(lambda: all(p["spec"].get("nodeName") for p in api.objects("pods")))
            assert all(attempt.node and attempt.ignored for attempt in scheduler.attempts)


def test_case_05_own_and_system_pods_are_never_masked() -> None:
    guard = Guard(Policies(), Fresh(), "shoal-system")
    masked = {name: guard.masks(PodRecord("p", name)) for name in ("shoal-system", "kube-system", "default")}
    assert masked == {"shoal-system": False, "kube-system": False, "default": True}
