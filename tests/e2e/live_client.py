# SPDX-License-Identifier: Apache-2.0
"""A real `shoal client serve` in a process of its own, against a virtual control plane."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from shoal_common.learners.td3 import TD3, TD3Config
from shoal_common.policy import PolicyArtifact
from shoal_simulations.control_plane import (
    ApiServer,
    Attempt,
    Configuration,
    Kubelet,
    Scheduler,
    node,
    pod,
    read_configuration,
)

ROOT = Path(__file__).parents[2]
MAIN = "from shoal_common.cli import main; main()"
BEYOND_DEFAULTS = 1_400.0  # the most that the default plugins add; the policy's best node gets 1,500
POLICY = "e2e"
STANZA = ROOT / "deploy" / "kube-scheduler" / "extender.yaml"


def save_policy(directory: Path) -> Path:
    """An untrained policy: what it prefers is arbitrary and always the same."""
    return PolicyArtifact.save(directory, TD3(TD3Config(width=8), 3).networks.actor, {}).directory


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait(holds: Callable[[], Any], seconds: float = 30.0) -> Any:
    """What `holds` returns once it is true; the last answer where it never is."""
    deadline = time.monotonic() + seconds
    while not (found := holds()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def install_definitions(api: ApiServer) -> None:
    """Create the shipped CustomResourceDefinitions."""
    for path in sorted((ROOT / "deploy" / "crds").glob("*.yaml")):
        api.create("customresourcedefinitions", msgspec.yaml.decode(path.read_bytes()))


class LiveClient:
    """The process; its port stays the same over restarts."""

    def __init__(self, api: ApiServer, policy: Path, folder: Path, *options: str, main: str = MAIN) -> None:
        self.port, self.store = free_port(), folder / "experience"
        self._log = folder / "serve.log"
        kubeconfig = api.kubeconfig(folder / "kubeconfig")
        self._command = [
            *(sys.executable, "-c", main, "client", "serve"),
            *("--kubeconfig", str(kubeconfig), "--policy", str(policy)),
            *("--listen", f"127.0.0.1:{self.port}", "--store", str(self.store), *options),
        ]
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> LiveClient:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and wait until it is ready."""
        environment = {**os.environ, "PYTHONWARNINGS": "default"}
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, env=environment)
        assert wait(self.ready, 60.0), self.log()

    def stop(self) -> int:
        """SIGTERM; it ends within five seconds."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(10.0)

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def log(self) -> str:
        return self._log.read_text()

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=2):
                return True
        except OSError:
            return False

    def metrics(self) -> dict[str, float]:
        """Samples by name and labels, as they stand on the page."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as page:
            lines = page.read().decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def metric(self, name: str) -> float:
        return self.metrics().get(name, 0.0)

    def configuration(self, stanza: Path = STANZA) -> Configuration:
        """The shipped stanza with this client's port."""
        found = read_configuration(stanza)
        here = tuple(
            replace(e, url_prefix=e.url_prefix.replace(":8888", f":{self.port}")) for e in found.extenders
        )
        return replace(found, extenders=here)

    def scheduler(self, api: ApiServer) -> Scheduler:
        return Scheduler(api.url, self.configuration(), initial_backoff=0.1)


@dataclass
class World:
    """A virtual cluster under the shipped definitions and stanza, whose scheduler asks a live client."""

    api: ApiServer
    client: LiveClient
    scheduler: Scheduler
    made: int = 0

    def apply(self, **spec: Any) -> None:
        """Change the policy, and wait until the client goes by it."""
        self.api.patch("schedulingpolicies", POLICY, {"spec": spec})
        generation = self.api.get("schedulingpolicies", POLICY)["metadata"]["generation"]
        assert wait(lambda: self.status().get("observedGeneration") == generation), self.client.log()

    def status(self) -> dict[str, Any]:
        return dict(self.api.get("schedulingpolicies", POLICY).get("status") or {})

    def condition(self, kind: str) -> dict[str, Any]:
        return next((c for c in self.status().get("conditions", ()) if c["type"] == kind), {})

    def create(self, owner: int, **annotations: str) -> str:
        """One more pod of an owner; its uid."""
        self.made += 1
        name = f"o{owner}"
        reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": f"owner-{owner}"}
        made = pod(f"p{self.made}", cpu="50m", memory="64Mi", owner=reference, annotations=annotations)
        return str(self.api.create("pods", made)["metadata"]["uid"])

    def place(self, owner: int = 0, **annotations: str) -> Attempt:
        """One more pod of an owner; how the scheduler placed it."""
        uid = self.create(owner, **annotations)
        placed = wait(lambda: [a for a in self.scheduler.attempts if a.uid == uid and a.node])
        assert placed, self.client.log()
        return placed[0]


def served(attempt: Attempt) -> bool:
    """Whether the client's scores decided."""
    return max(attempt.totals.values()) > BEYOND_DEFAULTS


@contextmanager
def world(folder: Path, spec: dict[str, Any], *options: str, main: str = MAIN) -> Iterator[World]:
    """Eight equal nodes and a SchedulingPolicy of this spec; everything runs until the end of the block."""
    with ApiServer() as api:
        for index in range(8):
            api.create("nodes", node(f"n{index}", cpu="64", memory="256Gi", pods=500))
        install_definitions(api)
        api.create("schedulingpolicies", {"metadata": {"name": POLICY}, "spec": spec})
        client = LiveClient(api, save_policy(folder / "policy"), folder, *options, main=main)
        with client, Kubelet(api.url), client.scheduler(api) as scheduler:
            yield World(api, client, scheduler)
        assert client.process is not None
        assert client.process.returncode == 0, client.log()
