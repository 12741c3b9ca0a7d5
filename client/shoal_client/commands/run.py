# SPDX-License-Identifier: Apache-2.0
"""`shoal client run`: serve and train, as two processes that leave each other alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal_client.commands.train import DATA, ClipNorm, Cluster, Data, Delta, Epsilon, Private

if TYPE_CHECKING:
    from shoal_client.daemon import Program

EPILOG = """Examples:

  shoal client run --cluster harbour --epsilon 3 -- --policy /policies/v7 --listen 0.0.0.0:8888

  shoal client run --cluster lab --data /tmp/shoal --no-privacy -- --kubeconfig ~/.kube/config

What stands behind -- are options of `shoal client serve`; --store is DATA/experience."""

SHOAL = "from shoal_common.cli import main; main()"
PROBE_TIMEOUT_SECONDS = 3.0


def run(
    cluster: Cluster,
    data: Data = DATA,
    epsilon: Epsilon = None,
    delta: Delta = 1e-6,
    clip_norm: ClipNorm = None,
    privacy: Private = True,
    serve_options: Annotated[
        list[str] | None, typer.Argument(help="Behind --: options of shoal client serve.")
    ] = None,
    nice: Annotated[int, typer.Option(min=0, max=19, help="How far training steps back for serving.")] = 19,
) -> None:
    """Serve decisions and train, each in a process of its own that is started again when it ends or hangs.

    Training steps back (nice) and, on two or more CPUs, keeps to half of them; serving keeps to the others.
    SIGTERM ends both within 5 s. Where an option or a file of one is wrong, both end, with exit code 2.
    """
    import logging
    import signal
    import sys

    from shoal_client.commands.train import budget_of, check_name
    from shoal_client.daemon import Supervisor

    check_name(cluster)
    budget_of(epsilon, delta, clip_norm, privacy)
    logging.basicConfig(stream=sys.stderr, level="INFO", format="%(asctime)s %(levelname)s %(message)s")
    options = ["--cluster", cluster, "--data", str(data), "--delta", str(delta)]
    options += [] if epsilon is None else ["--epsilon", str(epsilon)]
    options += [] if clip_norm is None else ["--clip-norm", str(clip_norm)]
    options += [] if privacy else ["--no-privacy"]
    supervisor = Supervisor(programs(data, serve_options or [], options, nice))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: supervisor.end())
    supervisor.start()
    code = supervisor.wait()
    supervisor.stop()
    if code:
        raise typer.Exit(code)


def programs(data: Path, serve: Sequence[str], train: Sequence[str], nice: int) -> list[Program]:
    """The two programs, with the options that each is given."""
    import os
    import sys

    from shoal_client.daemon import Program, shares
    from shoal_client.training.remote import ask

    shoal = [sys.executable, "-c", SHOAL, "client"]
    first, second = shares(frozenset(os.sched_getaffinity(0)))
    store = [] if "--store" in serve else ["--store", str(data / "experience")]
    training = ["--training", str(data / "training")]

    def trains() -> bool:
        ask(data / "trainer.sock", {"ask": "ping"}, silent_seconds=PROBE_TIMEOUT_SECONDS)
        return True

    return [
        Program("serve", [*shoal, "serve", *store, *training, *serve], serves(serve), cpus=first),
        Program("train", [*shoal, "train", *train], trains, nice, second),
    ]


def serves(options: Sequence[str]) -> Callable[[], bool]:
    """A probe of `shoal client serve` with these options: /livez, or a connection where it speaks TLS."""
    import socket
    import urllib.request

    from shoal_client.serve.server import Address

    given = dict(itertools.pairwise(options))
    given |= dict(option.split("=", 1) for option in options if option.startswith("--") and "=" in option)
    listen = given.get("--listen", "127.0.0.1:8888")
    plain = given.get("--metrics-listen") or ("" if "--tls-cert" in given else listen)
    at = Address.parse(plain or listen, "--listen")
    host = "127.0.0.1" if at.host in {"0.0.0.0", "::"} else at.host

    def lives() -> bool:
        if not plain:
            socket.create_connection((host, at.port), PROBE_TIMEOUT_SECONDS).close()
            return True
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{at.port}/livez"
        with urllib.request.urlopen(url, timeout=PROBE_TIMEOUT_SECONDS) as answer:
            return bool(answer.status == 200)

    return lives
