# SPDX-License-Identifier: Apache-2.0
"""`shoal client explain --prometheus`: the live features of a pod's node, from a real Prometheus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from shoal_client.collect.features import LIVE_FEATURES
from shoal_client.commands.client import app
from shoal_simulations.control_plane import ApiServer, node, pod

from .conftest import ADDRESSES, Site

GONE = "http://127.0.0.1:1"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer() as server:
        for name, address in ADDRESSES.items():
            server.create("nodes", node(name, cpu=4, memory="16Gi", address=address))
        server.create("pods", pod("web", cpu="500m"))
        server.bind("web", "worker-a")
        server.create("pods", pod("waits", cpu="500m"))
        server.kubeconfig(tmp_path / "kubeconfig")
        yield server


def _run(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["explain", *options, "--kubeconfig", str(folder / "kubeconfig")])


def _told(folder: Path, *options: str) -> dict[str, Any]:
    done = _run(folder, *options, "--json")
    assert done.exit_code == 0, done.output
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_the_nodes_live_features_with_unit_and_age(site: Site, api: ApiServer, tmp_path: Path) -> None:
    told = _told(tmp_path, "web", "--prometheus", site.prometheus.url)
    assert told["measured"] == "worker-a"
    units = {f.name: f.unit for f in LIVE_FEATURES}
    live = {row["feature"]: row for row in told["live"]}
    assert {"cpu_used", "memory_used", "disk_busiest"} <= live.keys() <= units.keys()
    assert all(row["unit"] == units[name] and 0 <= row["age_seconds"] < 60 for name, row in live.items())
    assert live["machine_watts"]["value"] == 184
    text = _run(tmp_path, "web", "--prometheus", site.prometheus.url).stdout
    assert f"live features of worker-a ({len(live)} of {len(units)} known)" in text
    assert "machine_watts" in text


def test_nothing_is_asked_without_a_prometheus_and_nothing_known_of_one_that_is_away(
    api: ApiServer, tmp_path: Path
) -> None:
    assert (_told(tmp_path, "web")["measured"], _told(tmp_path, "web")["live"]) == ("", [])
    told = _told(tmp_path, "web", "--prometheus", GONE)
    assert (told["measured"], told["live"]) == ("worker-a", [])
    assert "live features of worker-a (0 of" in _run(tmp_path, "web", "--prometheus", GONE).stdout


def test_a_pod_without_a_node_has_no_live_features(api: ApiServer, tmp_path: Path) -> None:
    told = _told(tmp_path, "waits", "--prometheus", GONE)
    assert (told["measured"], told["live"]) == ("", [])


def test_a_wrong_address_is_one_line(api: ApiServer, tmp_path: Path) -> None:
    done = _run(tmp_path, "web", "--prometheus", "nowhere")
    assert "--prometheus" in str(done.exception)
