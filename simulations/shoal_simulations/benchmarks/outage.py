# SPDX-License-Identifier: Apache-2.0
"""The API server away for ten minutes under a real `shoal client serve`: its answers, and how it recovers."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal_common.errors import Transient
from shoal_simulations.benchmarks.extender import served, untrained
from shoal_simulations.benchmarks.memory import resident_bytes
from shoal_simulations.control_plane import ApiServer, Configuration, Kubelet, Scheduler, Stanza, node, pod
from shoal_simulations.control_plane.extenders import Extender, ExtenderError

NODES, PODS = 8, 30
AWAY_SECONDS, QUICK_SECONDS = 605.0, 10.0
PATIENCE_SECONDS = 120.0


def run(quick: bool = False) -> dict[str, Any]:
    """Ten minutes away; `quick` (within 50 s) takes ten seconds, in which the caches do not grow stale."""
    seconds = QUICK_SECONDS if quick else AWAY_SECONDS
    with tempfile.TemporaryDirectory() as name, ApiServer() as api:
        folder = Path(name)
        for index in range(NODES):
            api.create("nodes", node(f"node-{index}"))
        store = ("--store", str(folder / "store"))
        with served(api, folder, untrained(folder), options=store) as client, Kubelet(api.url):
            stanza = Stanza(
                f"http://127.0.0.1:{client.port}",
                prioritize_verb="prioritize",
                weight=15,
                timeout_seconds=2.0,
                node_cache_capable=True,
                ignorable=True,
            )
            with Scheduler(api.url, Configuration((stanza,))) as scheduler:
                return {"quick": quick, **_outage(api, scheduler, Extender(stanza), client.process, seconds)}


def _outage(
    api: ApiServer,
    scheduler: Scheduler,
    extender: Extender,
    process: subprocess.Popen[bytes],
    seconds: float,
) -> dict[str, Any]:
    for index in range(PODS):
        api.create("pods", pod(f"before-{index}", cpu="50m"))
    _until(lambda: len(scheduler.attempts) >= PODS and _serves(api, extender))
    before = resident_bytes(process.pid)
    api.down()
    begin, neutral = time.monotonic(), None
    while time.monotonic() - begin < seconds:
        if neutral is None and not _serves(api, extender):
            neutral = time.monotonic() - begin
        time.sleep(0.5)
    waiting = [api.create("pods", pod(f"after-{index}"))["metadata"]["name"] for index in range(5)]
    away = resident_bytes(process.pid)
    api.up()
    begin = time.monotonic()
    _until(lambda: all(api.get("pods", name)["spec"].get("nodeName") for name in waiting))
    placed = time.monotonic() - begin
    _until(lambda: _serves(api, extender))
    return {
        "away_seconds": seconds,
        "neutral_after_seconds": neutral,
        "placed_after_seconds": placed,
        "served_again_after_seconds": time.monotonic() - begin,
        "memory_mb": {"before": before / 1e6, "at_the_end": away / 1e6},
        "holds": process.poll() is None,
    }


def _serves(api: ApiServer, extender: Extender) -> bool:
    """Whether the client answers a policy's scores; equal ones are neutral."""
    asked = pod("asked", cpu="50m")
    asked["metadata"]["uid"] = "asked"
    nodes = {found["metadata"]["name"]: found for found in api.objects("nodes")}
    try:
        return any(extender.prioritize(asked, nodes).values())
    except ExtenderError:
        return False


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise Transient("the client did not get there within two minutes")
        time.sleep(0.02)
