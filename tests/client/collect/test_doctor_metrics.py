# SPDX-License-Identifier: Apache-2.0
"""What `shoal client doctor` says of a real Prometheus: which exporter reaches which nodes."""

from __future__ import annotations

from pathlib import Path

from shoal_client.diagnosis.doctor import Doctor, Examination
from shoal_client.diagnosis.findings import Level
from shoal_simulations.control_plane import node
from shoal_simulations.control_plane.api import ApiServer

ADDRESSES = {"worker-a": "127.0.0.2", "gpu-b": "127.0.0.3", "twice-c": "127.0.0.4"}


def test_each_exporter_is_told_with_its_nodes_and_what_is_nobodys(site, tmp_path: Path) -> None:
    with ApiServer() as server:
        for name, address in ADDRESSES.items():
            server.create("nodes", node(name, address=address))
        asked = Examination(server.kubeconfig(tmp_path / "kubeconfig"), prometheus=site.prometheus.url)
        findings = [f for f in Doctor(asked).examine() if f.check == "metrics"]
    said = {f.message.partition(":")[0]: f for f in findings}
    assert "dcgm: 1 of 3 nodes" in said["dcgm"].message
    assert "series of no node" in said["node"].message
    assert said["node"].level is Level.WARNING
    assert said["node"].remedy.startswith("relabel")
