# SPDX-License-Identifier: Apache-2.0
"""`shoal client agent`: what runs on each node and exports latencies of its kernel."""

from __future__ import annotations

import json
import signal
import threading
from typing import Annotated

import typer

from shoal_common.errors import InputError

EPILOG = """Examples:

  shoal client agent --listen 0.0.0.0:9797 --probe run_queue --probe block_io --probe tcp

A probe needs bpftrace, user id 0 with CAP_BPF and CAP_PERFMON, tracefs at /sys/kernel/tracing and BTF. Where
any of them is lacking, shoal_ebpf_up is 0 and the log says why; the agent goes on."""


def agent(
    listen: Annotated[
        str, typer.Option(help="Address of /metrics, HOST:PORT; port 0 takes a free one.")
    ] = "127.0.0.1:9797",
    probe: Annotated[
        list[str] | None,
        typer.Option(help="A probe to run: run_queue, block_io or tcp; repeatable. None runs unasked."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document once it listens.")] = False,
) -> None:
    """Export run-queue, block I/O and TCP latencies of this node as Prometheus metrics. Off by default."""
    from prometheus_client import CollectorRegistry, start_http_server

    from shoal_client.collect.ebpf import PROBES, EbpfCollector, ProbeProcess

    host, port = _address(listen)
    names = [p.name for p in PROBES]
    for name in probe or ():
        if name not in names:
            raise InputError(
                "shoal client agent", "--probe", f"{name} is unknown", f"give {', '.join(names)}"
            )
    processes = [ProbeProcess(p) for p in PROBES if p.name in (probe or ())]
    registry = CollectorRegistry()
    registry.register(EbpfCollector(processes))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as e:
        raise InputError(
            "shoal client agent", "--listen", f"{listen}: {e.strerror or e}", "take another"
        ) from e
    for process in processes:
        process.start()
    _tell(host, int(server.server_port), [p.probe.name for p in processes], as_json)
    try:
        _wait_for_the_end()
    finally:
        for process in processes:
            process.stop()
        server.shutdown()
        server.server_close()
        thread.join(timeout=5.0)


def _tell(host: str, port: int, probes: list[str], as_json: bool) -> None:
    shown = f"[{host}]" if ":" in host else host
    if as_json:
        typer.echo(json.dumps({"metrics": f"http://{shown}:{port}/metrics", "probes": probes}))
    else:
        typer.echo(f"http://{shown}:{port}/metrics, probes: {', '.join(probes) or 'none'}", err=True)


def _wait_for_the_end() -> None:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    stop.wait()


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InputError("shoal client agent", "--listen", f"{listen} is no address", "give HOST:PORT")
    return host.strip("[]"), int(port)
