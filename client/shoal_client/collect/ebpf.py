# SPDX-License-Identifier: Apache-2.0
"""Latencies of the kernel by bpftrace, as Prometheus metrics of the node agent.

Each probe is one bpftrace program (`bpftrace/*.bt`) that counts in the kernel and prints cumulative
histograms as JSON. It needs root as user id, CAP_BPF and CAP_PERFMON, tracefs and BTF; where any of them is
lacking the probe is down, says why once and is tried again later. Nothing else of the agent depends on it.

`BPFTRACE_BTF` is set because bpftrace otherwise looks for the types of modules too, for which the kernel asks
CAP_SYS_ADMIN.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

_log = logging.getLogger("shoal.client.collect")

PROGRAMS: Final = Path(__file__).with_name("bpftrace")
BTF: Final = "/sys/kernel/btf/vmlinux"
BUCKETS: Final = 26  # powers of two of a microsecond: up to 67 s
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0


@dataclass(frozen=True, slots=True)
class Probe:
    """A bpftrace program, its histogram (microseconds) and its counters."""

    name: str
    histogram: str
    doc: str
    counters: Mapping[str, str]  # map -> what it counts


PROBES: Final = (
    Probe("run_queue", "run_queue", "Wait of a runnable task for a core.", {}),
    Probe("block_io", "block_io", "Time of a request at its disk, from issue to completion.", {}),
    Probe(
        "tcp",
        "tcp_rtt",
        "Smoothed round-trip time of TCP at each segment received.",
        {"tcp_retransmits": "TCP segments sent again."},
    ),
)


class Bucket(msgspec.Struct, frozen=True):
    """One bucket of a bpftrace histogram: how many whole numbers from `min` to `max` were seen."""

    count: int
    min: int = -1
    max: int = -1


class _Line(msgspec.Struct):
    type: str
    data: msgspec.Raw = msgspec.Raw(b"null")


@dataclass(frozen=True, slots=True)
class Printed:
    """What one line of bpftrace's JSON says: a histogram or a number, by map (without its @)."""

    histograms: Mapping[str, Sequence[Bucket]]
    numbers: Mapping[str, int]


def parse(line: bytes) -> Printed | None:
    """One line of `bpftrace -f json`, empty for "attached"; None for anything else than these three."""
    try:
        found = msgspec.json.decode(line, type=_Line)
        if found.type == "attached_probes":
            return Printed({}, {})
        if found.type == "hist":
            histograms = msgspec.json.decode(found.data, type=dict[str, list[Bucket]])
            return Printed({name.lstrip("@"): value for name, value in histograms.items()}, {})
        if found.type == "map":
            numbers = msgspec.json.decode(found.data, type=dict[str, int])
            return Printed({}, {name.lstrip("@"): value for name, value in numbers.items()})
    except msgspec.DecodeError:
        return None
    return None


def cumulative(buckets: Iterable[Bucket]) -> list[tuple[str, float]]:
    """Prometheus' cumulative buckets in seconds, always the same ones, of a histogram in microseconds."""
    counts = [0] * (BUCKETS + 1)
    for bucket in buckets:
        place = max(0, bucket.max).bit_length() if bucket.max >= 0 else 0
        counts[min(place, BUCKETS)] += bucket.count
    bounds = [f"{2.0**power * 1e-6:.9g}" for power in range(BUCKETS)]
    total, rows = 0, []
    for bound, count in zip([*bounds, "+Inf"], counts, strict=True):
        total += count
        rows.append((bound, float(total)))
    return rows


@final
class ProbeProcess:
    """One bpftrace process in a thread that reads it and starts it again when it ends."""

    def __init__(self, probe: Probe, bpftrace: str = "bpftrace") -> None:
        self.probe, self._bpftrace = probe, bpftrace
        self._lock = threading.Lock()
        self._histogram: Sequence[Bucket] = ()
        self._numbers: dict[str, int] = {}
        self._up = False
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name=f"bpftrace-{probe.name}", daemon=True)

    def start(self) -> None:
        """Begin to measure."""
        self._thread.start()

    def stop(self) -> None:
        """End bpftrace and the thread."""
        self._stop.set()
        with self._lock:
            process = self._process
        if process is not None:
            process.terminate()
        self._thread.join(timeout=5.0)

    def metrics(self) -> Iterator[Metric]:
        """What is known now; only `up` before the first event."""
        with self._lock:
            up, histogram, numbers = self._up, self._histogram, dict(self._numbers)
        probe = self.probe
        if histogram:
            total = numbers.get(f"{probe.histogram}_sum", 0) * 1e-6
            yield HistogramMetricFamily(
                f"shoal_ebpf_{probe.histogram}_seconds", probe.doc, cumulative(histogram), total
            )
        for name, doc in probe.counters.items():
            if name in numbers:
                yield CounterMetricFamily(f"shoal_ebpf_{name}", doc, numbers[name])
        state = GaugeMetricFamily("shoal_ebpf_up", "1 while a probe measures.", labels=("probe",))
        state.add_metric((probe.name,), float(up))
        yield state

    def _run(self) -> None:
        pause, told = FIRST_PAUSE, ""
        while not self._stop.is_set():
            begin = time.monotonic()
            reason = self._measure()
            with self._lock:
                self._up = False
            if self._stop.is_set():
                return
            if reason != told:
                _log.warning("probe %s does not measure: %s", self.probe.name, reason)
                told = reason
            pause = FIRST_PAUSE if time.monotonic() - begin > LONGEST_PAUSE else min(pause * 2, LONGEST_PAUSE)
            self._stop.wait(pause)

    def _measure(self) -> str:
        """Run bpftrace until it ends and return its last words."""
        command = shutil.which(self._bpftrace)
        if command is None:
            return f"{self._bpftrace} is not installed"
        program = str(PROGRAMS / f"{self.probe.name}.bt")
        environment = {**os.environ, "BPFTRACE_BTF": BTF} if Path(BTF).exists() else dict(os.environ)
        try:
            process = subprocess.Popen(
                [command, "-f", "json", program],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
            )
        except OSError as e:
            return str(e)
        with self._lock:
            self._process = process
        with process:
            return self._read(process)

    def _read(self, process: subprocess.Popen[bytes]) -> str:
        words: list[str] = []
        errors = threading.Thread(target=_last_words, args=(process, words), daemon=True)
        errors.start()
        if self._stop.is_set():
            process.terminate()
        for line in process.stdout or ():
            printed = parse(line)
            if printed is not None:
                self._take(printed)
        process.wait()
        errors.join(timeout=1.0)
        return words[-1] if words else f"bpftrace ended with {process.returncode}"

    def _take(self, printed: Printed) -> None:
        with self._lock:
            self._histogram = printed.histograms.get(self.probe.histogram, self._histogram)
            self._numbers |= printed.numbers
            self._up = True


def _last_words(process: subprocess.Popen[bytes], words: list[str]) -> None:
    for line in process.stderr or ():
        text = line.decode(errors="replace").strip()
        if text and "RLIMIT_MEMLOCK" not in text:  # harmless since Linux 5.11: memory is charged to cgroups
            words[:] = [text]


@final
class EbpfCollector(Collector):
    """All probes as one collector of a Prometheus registry."""

    def __init__(self, processes: Sequence[ProbeProcess]) -> None:
        self._processes = tuple(processes)

    def collect(self) -> Iterator[Metric]:
        """Families of all probes; `shoal_ebpf_up` once, with a sample per probe."""
        up = GaugeMetricFamily("shoal_ebpf_up", "1 while a probe measures.", labels=("probe",))
        for process in self._processes:
            for family in process.metrics():
                if family.name == up.name:
                    up.samples.extend(family.samples)
                else:
                    yield family
        yield up
