# SPDX-License-Identifier: Apache-2.0
"""bpftrace's output as Prometheus metrics, and the real programs on this kernel with two capabilities."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import urllib3
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from shoal_client.collect.ebpf import BTF, PROBES, Bucket, EbpfCollector, ProbeProcess, cumulative, parse

from .conftest import until

HISTOGRAM = b'{"type": "hist", "data": {"@run_queue": [{"min": 0, "max": 0, "count": 2}, {"min": 2, "max": 3, "count": 5}]}}'  # noqa: E501


def test_a_line_with_a_histogram() -> None:
    printed = parse(HISTOGRAM)
    assert printed is not None
    assert printed.histograms == {"run_queue": [Bucket(2, 0, 0), Bucket(5, 2, 3)]}


def test_a_line_with_a_number() -> None:
    printed = parse(b'{"type": "map", "data": {"@tcp_retransmits": 17}}')
    assert printed is not None
    assert printed.numbers == {"tcp_retransmits": 17}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"Attaching 4 probes...",
        b'{"type": "lost_events", "data": {"events": 3}}',
        b'{"type": 7}',
        b"[]",
        b'{"type": "map", "data": {"@queued": {"29941": 13213584267571}}}',
        b'{"type": "hist", "data": {"@x": 3}}',
    ],
)
def test_other_lines_say_nothing(line: bytes) -> None:
    assert parse(line) is None


def test_buckets_are_cumulative_in_seconds() -> None:
    rows = dict(cumulative([Bucket(1, -1, -1), Bucket(2, 0, 0), Bucket(3, 1, 1), Bucket(5, 1024, 2047)]))
    assert rows["1e-06"] == 3  # below 1 microsecond
    assert rows["2e-06"] == 6
    assert rows["0.001024"] == 6
    assert rows["0.002048"] == 11
    assert rows["+Inf"] == 11
    assert len(rows) == 27
    assert dict(cumulative([Bucket(4, 2**40, 2**41 - 1)]))["33.554432"] == 0


def test_a_missing_bpftrace_is_told_and_nothing_else_happens(caplog) -> None:
    process = ProbeProcess(PROBES[0], bpftrace="no-such-bpftrace")
    process.start()
    until(lambda: "is not installed" in caplog.text)
    registry = CollectorRegistry()
    registry.register(EbpfCollector([process]))
    assert generate_latest(registry).decode().splitlines()[-1] == 'shoal_ebpf_up{probe="run_queue"} 0.0'
    process.stop()


def test_a_program_that_the_kernel_refuses_is_told(caplog, tmp_path) -> None:
    refusing = tmp_path / "bpftrace"
    refusing.write_text("#!/bin/sh\necho 'ERROR: tracepoint not found: sched:sched_switch' >&2\nexit 1\n")
    refusing.chmod(0o755)
    process = ProbeProcess(PROBES[0], bpftrace=str(refusing))
    process.start()
    until(lambda: "tracepoint not found" in caplog.text)
    process.stop()


def lacking() -> str:
    """Why the real programs cannot run here; "" where they can."""
    if os.geteuid() != 0:
        return "bpftrace needs root"
    missing = [name for name in ("bpftrace", "unshare", "setpriv", "mount") if shutil.which(name) is None]
    if missing:
        return f"there is no {missing[0]} here"
    if not Path(BTF).exists():
        return "the kernel was built without BTF"
    script = f"{MOUNT} && test -e /sys/kernel/tracing/events/sched/sched_switch && {LIMITED} true"
    if subprocess.run(
        ["unshare", "-m", "sh", "-c", script], capture_output=True, timeout=10, check=False
    ).returncode:
        return "tracefs cannot be mounted, or CAP_BPF and CAP_PERFMON are not to be had"
    return ""


MOUNT = "{ test -d /sys/kernel/tracing/events || mount -t tracefs tracefs /sys/kernel/tracing; }"
LIMITED = "setpriv --bounding-set -all,+bpf,+perfmon --inh-caps -all"


@pytest.fixture
def agent():
    """`shoal client agent` with all probes, as root with CAP_BPF and CAP_PERFMON and nothing else."""
    reason = lacking()
    if reason:
        pytest.skip(reason)
    shoal = f"{Path(sys.executable).with_name('shoal')} client agent --listen 127.0.0.1:0 --json"
    probes = " ".join(f"--probe {p.name}" for p in PROBES)
    script = f"{MOUNT} && exec {LIMITED} {shoal} {probes}"
    process = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    yield process
    process.kill()
    process.communicate()


def read(url: str) -> dict[str, float]:
    text = urllib3.request("GET", url, timeout=5.0, retries=False).data.decode()
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    return {s.name + s.labels.get("probe", "") + s.labels.get("le", ""): s.value for s in samples}


def traffic() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_echo, args=(server,), daemon=True).start()
        with socket.create_connection(server.getsockname()) as client:
            for _ in range(50):
                client.sendall(b"x" * 1000)
                client.recv(1)


def _echo(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        while connection.recv(1000):
            connection.sendall(b"y")


def write(path: Path) -> None:
    with path.open("wb") as file:
        file.write(os.urandom(1 << 20))
        os.fsync(file.fileno())


@pytest.mark.e2e
def test_real_programs_measure_with_two_capabilities(agent, tmp_path) -> None:
    told = json.loads(agent.stdout.readline())
    assert told["probes"] == [p.name for p in PROBES]
    until(lambda: all(read(told["metrics"])[f"shoal_ebpf_up{p.name}"] == 1 for p in PROBES))

    def measured() -> bool:
        traffic()
        write(tmp_path / "block")
        return {f"shoal_ebpf_{p.histogram}_seconds_count" for p in PROBES} <= read(told["metrics"]).keys()

    until(measured)
    values = read(told["metrics"])
    for probe in PROBES:
        name = f"shoal_ebpf_{probe.histogram}_seconds"
        assert values[f"{name}_bucket+Inf"] == values[f"{name}_count"] > 0
        mean = values[f"{name}_sum"] / values[f"{name}_count"]
        assert 0 <= mean < 10
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(timeout=5) == 0
