# SPDX-License-Identifier: Apache-2.0
"""How fast `shoal client serve` answers prioritize: real HTTP, keep-alive, the server alone on one core.

The emulated API server, the load (wrk where it is installed) and what changes the cluster share the other
core. One per cent of the nodes change each second and are encoded again. Every request carries a pod in a
version that was not seen before; each of 200 pods comes again, which frees the room held for it.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal_common.errors import Fatal
from shoal_simulations.control_plane import ApiServer, node, pod

SCRIPT = Path(__file__).with_suffix(".lua")
CLIENT = "from shoal_common.cli import main; main()"
PODS = 200
SIZES = ((100, 100, 3.0), (5_000, 500, 6.0), (5_000, 5_000, 25.0))
"""Nodes of the cluster, names in a request (kube-scheduler sends 500 at 5,000 nodes), budget in ms."""
RATE, RATE_NAMES, RATE_CONNECTIONS = 300.0, 100, 4
QUICK_SECONDS, SECONDS, WARM_SECONDS = 6, 20, 3
READY_SECONDS = 120.0
CHANGES = 0.01  # share of the nodes that change each second


@dataclass(frozen=True, slots=True)
class Load:
    """What a run of requests saw."""

    p50_ms: float
    p99_ms: float
    max_ms: float
    requests_per_second: float
    cpu_ms: float  # of the server, per request: what other work on the machine does not change
    failed: int


@dataclass(frozen=True, slots=True)
class Target:
    """A server under test: its port, and how the machine is divided."""

    port: int
    cores: tuple[set[int], set[int]]  # of the server, of everything else
    process: subprocess.Popen[bytes]


def run(quick: bool, nodes: int | None = None, policy: Path | None = None) -> dict[str, Any]:
    """Measure; `nodes` is the number of nodes and of names, the default sizes where it is None."""
    sizes = [(nodes, nodes, 0.0)] if nodes else SIZES[:1] if quick else SIZES
    seconds = QUICK_SECONDS if quick else SECONDS
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        artifact = policy or untrained(Path(folder))
        for count, names, budget in sizes:
            rows.append(_size(Path(folder), artifact, count, names, budget, seconds))
        extra = {}
        if not quick and nodes is None:
            from shoal_simulations.benchmarks import extender_sensitivity

            extra = extender_sensitivity.run(Path(folder), artifact)
    first = rows[0]
    return {
        "p50_ms": first["p50_ms"],
        "p99_ms": first["p99_ms"],
        "requests_per_second": first["requests_per_second"],
        "policy": "given" if policy else "untrained, of the default width",
        "load": "wrk" if shutil.which("wrk") else "python",
        "cores": len(os.sched_getaffinity(0)),
        "sizes": rows,
        **extra,
    }


def _size(
    folder: Path, artifact: Path, nodes: int, names: int, budget: float, seconds: int
) -> dict[str, Any]:
    """One cluster: latency of requests one after the other, then the rate of four connections."""
    with cluster(nodes) as api, served(api, folder, artifact) as target, changing(api, nodes):
        template = request_template(folder, names)
        load(target, template, 1, WARM_SECONDS)
        alone = load(target, template, 1, seconds)
        together = load(target, template, RATE_CONNECTIONS, seconds)
    return {
        "nodes": nodes,
        "names": names,
        "p50_ms": alone.p50_ms,
        "p99_ms": alone.p99_ms,
        "max_ms": alone.max_ms,
        "cpu_ms": alone.cpu_ms,
        "budget_ms": budget or None,
        "requests_per_second": together.requests_per_second,
        "p99_ms_at_4": together.p99_ms,
        "failed": alone.failed + together.failed,
    }


def untrained(folder: Path) -> Path:
    """An artifact of the default learner's shape with parameters as drawn."""
    from shoal_common.learners.td3 import TD3, TD3Config
    from shoal_common.policy import PolicyArtifact

    actor = TD3(TD3Config(), seed=0).networks.actor
    return PolicyArtifact.save(folder / "artifact", actor, {"trained": False}).directory


@contextmanager
def cluster(nodes: int) -> Iterator[ApiServer]:
    """An API server with nodes of several sizes, in this process."""
    with ApiServer() as api:
        for i in range(nodes):
            api.create("nodes", node(name(i), cpu=16 + 8 * (i % 5), memory=f"{64 + 32 * (i % 4)}Gi"))
        yield api


def name(i: int) -> str:
    """The name of the i-th node, as long as those of kube-scheduler's own benchmarks."""
    return f"node-{i:05d}"


@contextmanager
def served(
    api: ApiServer, folder: Path, artifact: Path, cgroup: Path | None = None, options: Sequence[str] = ()
) -> Iterator[Target]:
    """`shoal client serve` on a core of its own, ready to answer; everything else keeps off it.

    `cgroup` is a cgroup.procs file that it is written into, `options` are further ones of its command line.
    Raises Fatal when it does not get ready.
    """
    cores = sorted(os.sched_getaffinity(0))
    own, others = {cores[0]}, set(cores[1:]) or {cores[0]}
    command = [
        sys.executable, "-c", CLIENT, "client", "serve", "--mode", "active", "--listen", "127.0.0.1:0",
        "--kubeconfig", str(api.kubeconfig(folder / "kubeconfig")), "--policy", str(artifact), *options,
    ]  # fmt: skip
    os.sched_setaffinity(0, others)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    log = (folder / "serve.log").open("w+b")
    process = subprocess.Popen(command, stderr=log, stdout=log, env=environment)
    os.sched_setaffinity(process.pid, own)  # before it starts a thread, which would keep the others' cores
    if cgroup is not None:
        cgroup.write_text(str(process.pid))
    try:
        yield Target(_ready(process, folder / "serve.log"), (own, others), process)
    finally:
        process.terminate()
        process.wait(10)
        log.close()
        os.sched_setaffinity(0, cores)


def _ready(process: subprocess.Popen[bytes], log: Path) -> int:
    """Wait until the server can decide; its port."""
    until = time.monotonic() + READY_SECONDS
    port = 0
    while time.monotonic() < until and process.poll() is None:
        found = re.search(r"listening on \S+:(\d+)", log.read_text())
        port = int(found[1]) if found else 0
        if port and _get(port, "/readyz") == 200:
            return port
        time.sleep(0.1)
    raise Fatal(f"shoal client serve did not get ready: {log.read_text()[-500:]}")


def _get(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


@contextmanager
def changing(api: ApiServer, nodes: int) -> Iterator[None]:
    """Change so many nodes each second, evenly over it, in what the policy sees of them."""
    stop, interval = threading.Event(), 1.0 / max(CHANGES * nodes, 1.0)

    def change() -> None:
        for k in itertools.count():
            if stop.wait(interval):
                return
            speed = {"shoal.dev/speed": str(1.0 + 0.01 * (k % 50))}
            api.patch("nodes", name(k * 7 % nodes), {"metadata": {"annotations": speed}})

    thread = threading.Thread(target=change, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def request_template(folder: Path, names: int) -> Path:
    """A prioritize request with @ for the pod's number and # for the request's."""
    obj = pod("bench-@", cpu="250m", memory="256Mi")
    obj["metadata"] |= {"uid": "uid-@", "resourceVersion": "#", "creationTimestamp": "2026-01-01T00:00:00Z"}
    asked = {"Pod": obj, "Nodes": None, "NodeNames": [name(i) for i in range(names)]}
    path = folder / f"request-{names}.json"
    path.write_text(json.dumps(asked, separators=(",", ":")))
    return path


def load(target: Target, template: Path, connections: int, seconds: int) -> Load:
    """Ask as fast as the answers come, over so many connections."""
    ask = _wrk if shutil.which("wrk") else _ask
    before = _cpu_seconds(target.process.pid)
    took = ask(target.port, template, connections, seconds)
    cpu_ms = 1e3 * (_cpu_seconds(target.process.pid) - before) / max(took.requests, 1)
    p50, p99, worst = (float(x) / 1e3 for x in (took.p50, took.p99, took.max))
    rate = took.requests / (took.microseconds / 1e6)
    return Load(p50, p99, worst, rate, cpu_ms, took.failed)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Took(NamedTuple):
    """What a load generator says; times in microseconds."""

    requests: int
    microseconds: float
    failed: int
    p50: float
    p99: float
    max: float


def _wrk(port: int, template: Path, connections: int, seconds: int) -> Took:
    command = [
        "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "5s", "-s", str(SCRIPT),
        f"http://127.0.0.1:{port}", "--", str(template),
    ]  # fmt: skip
    out = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds + 30).stdout
    return Took(**json.loads(out[out.index("{") :].splitlines()[0]))


def _ask(port: int, template: Path, connections: int, seconds: int) -> Took:
    """The same without wrk; its own work is in the figures."""
    begin, counter, form = time.monotonic(), itertools.count(1), template.read_text()
    times: list[float] = []
    failed: list[int] = []

    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        while time.monotonic() - begin < seconds:
            k = next(counter)
            text = form.replace("@", str(k % PODS)).replace("#", str(k))
            asked = time.perf_counter()
            connection.request("POST", "/prioritize", text, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            times.append(time.perf_counter() - asked)
            if answer.status != 200:
                failed.append(answer.status)
        connection.close()

    threads = [threading.Thread(target=ask) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    us = np.array(times) * 1e6
    spread = (float(np.percentile(us, 50)), float(np.percentile(us, 99)), float(us.max()))
    return Took(len(times), 1e6 * (time.monotonic() - begin), len(failed), *spread)
