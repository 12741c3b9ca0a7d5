# SPDX-License-Identifier: Apache-2.0
"""`shoal client train`: the process that trains when the federation's server asks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal_common.errors import InputError

if TYPE_CHECKING:
    from shoal_common.privacy.config import Budget

EPILOG = """Examples:

  shoal client train --cluster harbour --data /var/lib/shoal --epsilon 3 --delta 1e-6

  shoal client train --cluster lab --data /tmp/shoal --no-privacy

Flower's ClientApp reaches it with trainer = "shoal_client.training.remote:make_trainer"."""


DATA = Path("/var/lib/shoal")
Cluster = Annotated[str, typer.Option(help="This cluster's name in the federation.")]
Data = Annotated[Path, typer.Option(help="Directory of experience, training state and socket.")]
Epsilon = Annotated[
    float | None, typer.Option(help="Epsilon that this cluster gives away at most, over all runs.")
]
Delta = Annotated[float, typer.Option(help="Delta that it holds at.")]
ClipNorm = Annotated[
    float | None, typer.Option(help="Largest norm of a decision's gradient. Default: the federation's.")
]
Private = Annotated[bool, typer.Option("--privacy/--no-privacy", help="Train with differential privacy.")]


def train(
    cluster: Cluster,
    data: Data = DATA,
    epsilon: Epsilon = None,
    delta: Delta = 1e-6,
    clip_norm: ClipNorm = None,
    privacy: Private = True,
    socket: Annotated[Path | None, typer.Option(help="Unix socket. Default: DATA/trainer.sock.")] = None,
) -> None:
    """Train this cluster's policy on its own experience, round by round, until SIGTERM.

    What leaves is differentially private within the budget, or nothing. A round that was broken off is found
    or done again under the same ledger row.
    """
    import logging
    import sys

    check_name(cluster)
    budget, path = budget_of(epsilon, delta, clip_norm, privacy), socket or data / "trainer.sock"
    logging.basicConfig(stream=sys.stderr, level="INFO", format="%(asctime)s %(levelname)s %(message)s")
    _end_at_once_on_signals(path)

    from shoal_client.training.live import LiveConfig, LiveTrainer
    from shoal_client.training.server import TrainerServer

    config = LiveConfig(cluster, data / "experience", data / "training", budget)
    server = TrainerServer(path, LiveTrainer(config))
    typer.echo(f"training for {cluster} at {path}", err=True)
    try:
        server.serve()
    finally:
        server.close()


def _end_at_once_on_signals(path: Path) -> None:
    """End on SIGTERM and SIGINT, whatever library the training thread is deep in.

    A round that runs is broken off as by a crash, which loses nothing and pays nothing twice.
    """
    import contextlib
    import os
    import signal
    import threading

    from shoal_client.socket_path import make_way

    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # for the threads to come as well

    def wait() -> None:
        signal.sigwait(signals)
        with contextlib.suppress(OSError):
            make_way(path)
        os._exit(0)

    threading.Thread(target=wait, name="signals", daemon=True).start()


def check_name(cluster: str) -> None:
    """Raise InputError where a cluster has no name."""
    if not cluster.strip():
        raise InputError("shoal client", "--cluster", "is empty", "give this cluster's name")


def budget_of(epsilon: float | None, delta: float, clip_norm: float | None, privacy: bool) -> Budget | None:
    """The budget that these options state; raises InputError."""
    from shoal_common.privacy.config import Budget

    where = "shoal client"
    if not privacy:
        if epsilon is not None:
            raise InputError(where, "--epsilon", "stands beside --no-privacy", "give one of them")
        return None
    if epsilon is None:
        raise InputError(where, "--epsilon", "is not given", "give a budget, or --no-privacy")
    for name, value, high in (("--epsilon", epsilon, 1e3), ("--delta", delta, 0.01)):
        if not 0 < value <= high:
            remedy = f"give above 0, at most {high:g}"
            raise InputError(where, name, f"{value:g} is out of range", remedy)
    if clip_norm is not None and not 0 < clip_norm <= 1e6:
        raise InputError(where, "--clip-norm", f"{clip_norm:g} is out of range", "give above 0, at most 1e6")
    return Budget(epsilon, delta, clip_norm)
