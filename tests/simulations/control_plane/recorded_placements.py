# SPDX-License-Identifier: Apache-2.0
"""Pods whose placement by a real kube-scheduler with an extender is kept beside the tests.

    python recorded_placements.py https://127.0.0.1:6443 TOKEN KUBECONFIG SCHEDULER

records them anew: an empty cluster without scheduler and controllers, and the path of a kube-scheduler
(v1.36.2 at the time of writing).
"""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from recorded_requests import ask, delete, get, post

from shoal_simulations.control_plane import Stanza, node, pod

RECORDED = Path(__file__).parent / "placements.json"
PODS = "/api/v1/namespaces/default/pods"
ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
NODES_COUNT, PODS_COUNT = 40, 90
CONFIGURATION = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {{kubeconfig: {kubeconfig}, qps: 500, burst: 500}}
leaderElection: {{leaderElect: false}}
extenders:
- {{urlPrefix: "{url}", filterVerb: filter, prioritizeVerb: prioritize, weight: 1, httpTimeout: 5s,
    nodeCacheCapable: true, ignorable: true}}
"""
Call = tuple[str, str, list[str]]  # verb, pod, sorted node names


def digest(*texts: str) -> int:
    return int.from_bytes(hashlib.sha256(" ".join(texts).encode()).digest()[:4], "big")


def nodes() -> list[dict[str, Any]]:
    """Nodes of several sizes, some with taints or GPUs, in three zones."""
    draw, made = random.Random(7), []
    for i in range(NODES_COUNT):
        hard = [{"key": "x", "value": "y", "effect": "NoSchedule"}] if i % 9 == 0 else []
        soft = [{"key": "p", "value": "q", "effect": "PreferNoSchedule"}] if i % 7 == 0 else []
        made.append(
            node(
                f"n{i:02}",
                cpu=draw.choice([4, 8, 16]),
                memory=draw.choice(["8Gi", "16Gi", "64Gi"]),
                gpus=4 if i % 10 == 3 else 0,
                labels={ZONE: f"z{i % 3}", "disk": draw.choice(["ssd", "hdd"])},
                taints=hard or soft,
            )
        )
    return made


def pods() -> list[dict[str, Any]]:
    """Pods that ask for every plugin: selectors, affinities, spread, tolerations, devices."""
    draw = random.Random(8)
    return [
        pod(
            f"p{i:03}",
            cpu=draw.choice(["100m", "500m", "1", "2"]),
            memory=draw.choice(["128Mi", "1Gi", "2Gi"]),
            gpus=1 if i % 10 == 4 else 0,
            labels={"app": f"a{i % 4}"},
            spec=_spec(i),
        )
        for i in range(PODS_COUNT)
    ]


def _spec(i: int) -> dict[str, Any]:
    same = {"matchLabels": {"app": f"a{i % 4}"}}
    hdd = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["hdd"]}]}
    spread = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": same}
    required, preferred = (
        f"{kind}DuringSchedulingIgnoredDuringExecution" for kind in ("required", "preferred")
    )
    affinity: dict[str, Any] = {}
    if i % 7 == 0:
        affinity["nodeAffinity"] = {preferred: [{"weight": 30, "preference": hdd}]}
    if i % 11 == 0:
        affinity["podAntiAffinity"] = {required: [{"topologyKey": HOST, "labelSelector": same}]}
    return {
        **({"affinity": affinity} if affinity else {}),
        **({"nodeSelector": {"disk": "ssd"}} if i % 5 == 0 else {}),
        **({"topologySpreadConstraints": [spread]} if i % 6 == 0 else {}),
        **({"tolerations": [{"key": "x", "operator": "Exists"}]} if i % 13 == 0 else {}),
    }


@contextmanager
def extender() -> Iterator[tuple[str, list[Call]]]:
    """An extender that drops a fifth of the nodes and scores the others by a hash; its URL and calls."""
    calls: list[Call] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            verb, name = self.path.rsplit("/", 1)[-1], asked["Pod"]["metadata"]["name"]
            calls.append((verb, name, sorted(asked["NodeNames"])))
            raw = json.dumps(_answer(verb, name, asked["NodeNames"])).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/extender", calls
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _answer(verb: str, name: str, names: list[str]) -> Any:
    if verb == "prioritize":
        return [{"Host": host, "Score": digest(name, host) % 41} for host in names]
    kept = [host for host in names if digest(name, host, "filter") % 5]
    return {"NodeNames": kept, "FailedNodes": {host: "no" for host in names if host not in kept}}


def stanza(url: str) -> Stanza:
    """The configuration above for the virtual scheduler."""
    return Stanza(
        url, "filter", "prioritize", weight=1, timeout_seconds=5.0, node_cache_capable=True, ignorable=True
    )


def record(url: str, token: str, kubeconfig: str, scheduler: str) -> None:
    """Let a real scheduler place the pods one after the other."""
    for made in nodes():
        ask(url, post("/api/v1/nodes", made), token)
    with extender() as (where, calls), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scheduler.yaml"
        path.write_text(CONFIGURATION.format(kubeconfig=kubeconfig, url=where))
        command = [scheduler, f"--config={path}", f"--cert-dir={folder}", "--secure-port=0"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            time.sleep(6)
            placed = {made["metadata"]["name"]: _place(url, token, made) for made in pods()}
        finally:
            process.terminate()
            process.wait()
    RECORDED.write_text(json.dumps({"placed": placed, "calls": calls}) + "\n")


def _place(url: str, token: str, made: dict[str, Any]) -> str:
    """The node, or "" where there is none: then the pod is deleted again."""
    path = f"{PODS}/{made['metadata']['name']}"
    ask(url, post(PODS, made), token)
    while True:
        found = ask(url, get(path), token)[1]
        if found["spec"].get("nodeName"):
            return str(found["spec"]["nodeName"])
        if any(c["status"] == "False" for c in found["status"].get("conditions") or ()):
            ask(url, delete(path), token)
            return ""
        time.sleep(0.02)


if __name__ == "__main__":
    record(*sys.argv[1:5])
