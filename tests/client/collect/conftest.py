# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus that scrapes recorded exporters.

A recording is an exporter's text where a counter carries its growth per second after a plus sign. An exporter
answers each scrape with the counters one scrape interval further.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import urllib3

from shoal_client.collect.prometheus import PrometheusClient
from shoal_client.state.live import LiveCluster
from shoal_simulations.control_plane import node, pod

RECORDED = Path(__file__).with_name("recorded")
SCRAPE_SECONDS = 0.25
WINDOW_SECONDS = 2.0
GROWS = re.compile(r"^(.+) (\S+) \+(\S+)$")


class RecordedExporter:
    """An HTTP server on a loopback address of its own that answers with a recording."""

    def __init__(self, address: str, text: str, timestamps: bool = False) -> None:
        self.text, self.timestamps, self.scrapes, self.base = text, timestamps, 0, 1.0
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = exporter.render().encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer((address, 0), Handler)
        self._server.daemon_threads = True
        self.target = f"{address}:{self._server.server_port}"
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()

    def render(self) -> str:
        """The text of the next scrape."""
        seconds = self.scrapes * SCRAPE_SECONDS
        self.scrapes += 1
        stamp = f" {time.time_ns() // 1_000_000}" if self.timestamps else ""
        lines = []
        for line in self.text.splitlines():
            grows = GROWS.match(line)
            now = f"{grows[1]} {float(grows[2]) * self.base + float(grows[3]) * seconds!r}" if grows else line
            lines.append(now if line.startswith("#") else now + stamp)
        return "\n".join(lines) + "\n"

    def restart(self) -> None:
        """Begin every counter at 0 again."""
        self.scrapes, self.base = 0, 0.0

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@dataclass
class Job:
    name: str
    exporters: list[RecordedExporter]
    labels: dict[str, str] = field(default_factory=dict)
    honor_labels: bool = False
    path: str = "/metrics"


class RealPrometheus:
    """Debian's Prometheus with a few jobs; `stop` ends it like a machine that is gone."""

    def __init__(self, folder: Path, jobs: list[Job]) -> None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{s.getsockname()[1]}"
        (folder / "prometheus.yml").write_text(_config(jobs))
        command = [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder}/db",
        ]
        command += [f"--web.listen-address={self.url.removeprefix('http://')}", "--log.level=error"]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def ready(self) -> bool:
        try:
            answer = urllib3.request("GET", f"{self.url}/-/ready", timeout=1.0, retries=False)
        except urllib3.exceptions.HTTPError:
            return False
        return answer.status == 200

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def _config(jobs: list[Job]) -> str:
    interval = f"{int(SCRAPE_SECONDS * 1000)}ms"
    lines = ["global:", f"  scrape_interval: {interval}", f"  scrape_timeout: {interval}", "scrape_configs:"]
    for job in jobs:
        targets = ", ".join(f'"{e.target}"' for e in job.exporters)
        labels = ", ".join(f'{key}: "{value}"' for key, value in job.labels.items())
        lines += [
            f"  - job_name: {job.name}",
            f"    metrics_path: {job.path}",
            f"    honor_labels: {str(job.honor_labels).lower()}",
            f"    static_configs: [{{targets: [{targets}], labels: {{{labels}}}}}]",
        ]
    return "\n".join(lines) + "\n"


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for a condition of a service; fails when it does not come true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the service did not get there"
        time.sleep(0.05)


@dataclass
class Site:
    """A Prometheus and what it scrapes, by the exporter's name."""

    prometheus: RealPrometheus
    exporters: dict[str, RecordedExporter]

    @property
    def client(self) -> PrometheusClient:
        return PrometheusClient(self.prometheus.url)

    def scraped(self, times: int = 10) -> None:
        """Wait until every exporter was scraped so many times from now on."""
        goal = {name: e.scrapes + times for name, e in self.exporters.items()}
        until(lambda: all(e.scrapes >= goal[name] for name, e in self.exporters.items()))


def recording(name: str) -> str:
    return (RECORDED / f"{name}.txt").read_text()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """worker-a is told by all exporters, gpu-b by DCGM, twice-c is scraped twice, odd-d says odd things,
    gone-e stops when a test lets it."""
    if shutil.which("prometheus") is None:
        pytest.skip("there is no prometheus here (Debian: apt-get install prometheus)")
    a, b, c, d, gone, other = (f"127.0.0.{n}" for n in (2, 3, 4, 5, 6, 9))
    text = recording("node-exporter")
    exporters = {
        "node-a": RecordedExporter(a, text),
        "cadvisor-a": RecordedExporter(a, recording("cadvisor"), timestamps=True),
        "kubelet-a": RecordedExporter(a, recording("kubelet")),
        "ipmi-a": RecordedExporter(a, recording("ipmi-exporter")),
        "agent-a": RecordedExporter(other, recording("node-agent")),
        "dcgm-b": RecordedExporter(b, recording("dcgm-exporter")),
        "node-c": RecordedExporter(c, text.replace("worker-a", "twice-c")),
        "node-d": RecordedExporter(d, odd(text)),
        "node-e": RecordedExporter(gone, text.replace("worker-a", "gone-e")),
        "state": RecordedExporter(other, recording("kube-state-metrics")),
        "stranger": RecordedExporter("127.0.0.77", text.replace("worker-a", "stranger")),
    }
    e = exporters
    jobs = [
        Job("node-exporter", [e["node-a"], e["node-c"], e["node-d"], e["node-e"], e["stranger"]]),
        Job("node-exporter-again", [e["node-c"]]),
        Job("cadvisor", [e["cadvisor-a"]], honor_labels=True, path="/metrics/cadvisor"),
        Job("kubelet", [e["kubelet-a"]], {"node": "worker-a"}),
        Job("ipmi", [e["ipmi-a"]]),
        Job("agent", [e["agent-a"]], {"node": "worker-a"}),
        Job("dcgm", [e["dcgm-b"]]),
        Job("kube-state-metrics", [e["state"]], honor_labels=True),
    ]
    prometheus = RealPrometheus(tmp_path_factory.mktemp("prometheus"), jobs)
    found = Site(prometheus, exporters)
    try:
        until(prometheus.ready)
        found.scraped(12)
        yield found
    finally:
        prometheus.stop()
        for exporter in exporters.values():
            exporter.stop()


def odd(text: str) -> str:
    """A node exporter's text with NaN and infinities, without file systems, and of another node."""
    lines = [line for line in text.replace("worker-a", "odd-d").splitlines() if "node_filesystem" not in line]
    changed = {"node_load1": "NaN", "node_load5": "+Inf", "node_load15": "-Inf"}
    return "\n".join(
        f"{x.split()[0]} {changed.get(x.split()[0], '')}" if x.split()[0] in changed else x for x in lines
    )


ADDRESSES = {
    "worker-a": "127.0.0.2",
    "gpu-b": "127.0.0.3",
    "twice-c": "127.0.0.4",
    "odd-d": "127.0.0.5",
    "gone-e": "127.0.0.6",
    "none-f": "127.0.0.7",
}
WEB, TRAIN = "web-6d4b75cb6d-hx2lp", "train-0"


def versioned(manifest: dict[str, Any], version: int = 1, **status: Any) -> dict[str, Any]:
    """A manifest as the API sends it, with a uid and a version."""
    manifest["metadata"] |= {"uid": f"uid-{manifest['metadata']['name']}", "resourceVersion": str(version)}
    return manifest | {"status": {**manifest.get("status", {}), **status}}


def train(version: int = 1, phase: str = "Running") -> dict[str, Any]:
    """The pod train-0 on worker-a."""
    asked = {"cpu": "1500m", "memory": "4Gi", "namespace": "ml", "node_name": "worker-a"}
    return versioned(pod(TRAIN, **asked), version, phase=phase)


def six_nodes(**more: Any) -> LiveCluster:
    """A cluster of six nodes of four cores and 16 GiB; gpu-b has two GPUs, nobody tells of none-f."""
    live = LiveCluster()
    gpus = {"gpu-b": 2}
    made = [
        node(name, cpu=4, memory="16Gi", gpus=gpus.get(name, 0), address=address, **more)
        for name, address in ADDRESSES.items()
    ]
    live.replace("Node", [versioned(m) for m in made])
    web = pod(WEB, cpu="500m", memory="512Mi", namespace="shop", node_name="worker-a")
    live.replace("Pod", [versioned(web, phase="Running"), train()])
    return live


@pytest.fixture
def nodes() -> LiveCluster:
    """The cluster of `six_nodes`, which a test may change."""
    return six_nodes()
