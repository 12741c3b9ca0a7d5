# SPDX-License-Identifier: Apache-2.0
"""What kube-scheduler sees of a client that is late, short of memory or beside a busy core.

The extender study's sensitivity runs: latency of up to 1.5 s between scheduler and extender, memory limits
down to 120 MB, and training on the other core. In the first two pods must be placed all the same, their
scores ignored where they come too late or not at all.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shoal_common.errors import Fatal
from shoal_simulations.benchmarks.extender import CLIENT, Target, cluster, load, request_template, served
from shoal_simulations.control_plane import ApiServer, Configuration, Scheduler, Stanza, pod

DELAYS_MS = (0, 20, 50, 100, 250, 500, 1_500)
LIMITS_MB = (512, 256, 180, 120, 80)
NODES, PODS, BY_EACH = 50, 20, 90.0
TURNS = 3  # of each kind beside the training
TIMEOUT_SECONDS = 0.2  # the shipped stanza's
CGROUPS = (
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ("/sys/fs/cgroup", "memory.max", "memory.current"),
)
"""Where a memory cgroup is made, version 1 or 2: its limit and what is charged to it."""
_serial = itertools.count()


def run(folder: Path, artifact: Path) -> dict[str, Any]:
    """All three tables."""
    return {
        "delays": delays(folder, artifact),
        "memory": [memory(folder, artifact, limit) for limit in LIMITS_MB],
        "training": training(folder, artifact),
    }


def delays(folder: Path, artifact: Path) -> list[dict[str, Any]]:
    """Pods placed, and answers that counted, by latency between scheduler and extender."""
    rows = []
    with cluster(NODES) as api, served(api, folder, artifact) as target:
        for ms in DELAYS_MS:
            with delayed(target.port, ms / 1000) as port:
                rows.append({"delay_ms": ms, **place(api, port)})
    return rows


def memory(folder: Path, artifact: Path, limit_mb: int) -> dict[str, Any]:
    """The same under a memory limit of the serving process, whether it lives through it or not."""
    row: dict[str, Any] = {"limit_mb": limit_mb}
    try:
        with cluster(NODES) as api, _limited(limit_mb) as enter:
            return row | _under_limit(api, folder, artifact, enter)
    except OSError as error:
        return row | {"serves": f"not measured: no memory cgroup here ({error.strerror})"}


def _under_limit(api: ApiServer, folder: Path, artifact: Path, enter: Path) -> dict[str, Any]:
    try:
        with served(api, folder, artifact, cgroup=enter) as target:
            placed = place(api, target.port)
            alive = target.process.poll() is None
            return {"serves": "yes" if alive else "killed", "charged_mb": _charged_mb(enter), **placed}
    except Fatal:
        return {"serves": "does not start", "charged_mb": None, **place(api, 1)}


def training(folder: Path, artifact: Path) -> dict[str, Any]:
    """Latency at 100 names with the training on the other core halted and going on, by turns; medians.

    The load shares the server's core, so that the training has the other one to itself: on two cores one of
    the three must share, and a load beside the training would measure its own waits.
    """
    halted, going = [], []
    with cluster(100) as api, served(api, folder, artifact) as target:
        template = request_template(folder, 100)
        with busy(target, folder) as process, on(target.cores[0]):
            load(target, template, 1, 3)
            for _ in range(TURNS):
                process.send_signal(signal.SIGSTOP)
                halted.append(load(target, template, 1, 8))
                process.send_signal(signal.SIGCONT)
                going.append(load(target, template, 1, 8))
    alone, beside = (statistics.median(x.p99_ms for x in loads) for loads in (halted, going))
    return {
        "p99_ms_alone": alone,
        "p99_ms_beside_training": beside,
        "cpu_ms_alone": statistics.median(x.cpu_ms for x in halted),
        "cpu_ms_beside_training": statistics.median(x.cpu_ms for x in going),
        "worse": beside / alone - 1.0,
    }


@contextmanager
def on(cores: set[int]) -> Iterator[None]:
    """Run this thread and what it starts on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def busy(target: Target, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Training rounds, one after the other, off the server's core, and behind all else on theirs."""
    arguments = ["simulate", "--fleet", "small", "--rounds", "1000", "--fresh", "--out", str(folder / "run")]
    command = [sys.executable, "-c", CLIENT, *arguments]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet)
    os.sched_setaffinity(process.pid, target.cores[1])
    os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))  # the API has this core first
    time.sleep(5.0)  # it imports and builds its clusters first
    try:
        if process.poll() is not None:
            raise Fatal("the training process ended; run `shoal simulate --fleet small` to see why")
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait(10)


def place(api: ApiServer, port: int) -> dict[str, Any]:
    """Let a scheduler with the shipped stanza place pods: how many, how fast, how many by our scores."""
    url, prefix = f"http://127.0.0.1:{port}", f"s{next(_serial)}"
    stanza = Stanza(
        url, prioritize_verb="prioritize", weight=15, timeout_seconds=TIMEOUT_SECONDS,
        node_cache_capable=True, ignorable=True,
    )  # fmt: skip
    names = [f"{prefix}-{i}" for i in range(PODS)]
    for name in names:
        api.create("pods", pod(name, cpu="100m"))
    begin = time.monotonic()
    with Scheduler(api.url, Configuration(extenders=(stanza,))) as scheduler:
        left = set(names)
        while left and time.monotonic() - begin < BY_EACH:
            time.sleep(0.05)
            left = {name for name in left if not api.get("pods", name)["spec"].get("nodeName")}
        seconds = time.monotonic() - begin
        mine = [attempt for attempt in scheduler.attempts if attempt.pod.rpartition("/")[2] in set(names)]
    ignored = sum(bool(attempt.ignored) for attempt in mine)
    return {
        "pods": PODS,
        "placed": PODS - len(left),
        "scores_ignored": ignored,
        "seconds_per_pod": seconds / PODS,
    }


@contextmanager
def delayed(port: int, seconds: float) -> Iterator[int]:
    """A port that leads to another one, with every answer so much later."""
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_accept, args=(listener, port, seconds), daemon=True).start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.close()


def _accept(listener: socket.socket, port: int, seconds: float) -> None:
    with contextlib.suppress(OSError):  # the listener was closed
        while True:
            near, _ = listener.accept()
            far = socket.create_connection(("127.0.0.1", port), timeout=30)
            for source, sink, wait in ((near, far, 0.0), (far, near, seconds)):
                threading.Thread(target=_pump, args=(source, sink, wait), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket, wait: float) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(2**16):
            time.sleep(wait)
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@contextmanager
def _limited(limit_mb: int) -> Iterator[Path]:
    """A memory cgroup; the file to write a process id into. OSError where there is no permission for one."""
    problem: OSError | None = None
    for root, name, _ in CGROUPS:
        group = Path(root) / f"shoal-bench-{os.getpid()}-{limit_mb}"
        try:
            group.mkdir()
            (group / name).write_text(str(limit_mb * 2**20))
        except OSError as error:
            problem = error
            with contextlib.suppress(OSError):
                group.rmdir()
            continue
        try:
            yield group / "cgroup.procs"
        finally:
            with contextlib.suppress(OSError):
                group.rmdir()
        return
    raise problem or OSError("no cgroup")


def _charged_mb(enter: Path) -> float:
    charged = next(enter.parent / name for *_, name in CGROUPS if (enter.parent / name).exists())
    return int(charged.read_text()) / 2**20
