# SPDX-License-Identifier: Apache-2.0
"""The Flower ServerApp: reads the run configuration, makes the initial model, runs the rounds. No torch.

`app` is what Flower loads in a deployment. A program that runs its own engine makes one with `make_app` and
hands in what a run configuration cannot hold: the initial arrays, a sink for events, a way to stop.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import cast

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from shoal_common.errors import InputError
from shoal_common.observation import schema_hash
from shoal_common.wire import Arrays
from shoal_server.events import Event, Refusal, RoundEnded, Sink
from shoal_server.settings import Scalar, Settings
from shoal_server.strategy import Federation

Initial = Callable[[dict[str, Scalar]], Arrays]


def initial_arrays(run_config: dict[str, Scalar]) -> Arrays:
    """The initial model: run configuration `initial` = "module:function", called with the configuration."""
    reference = str(run_config.get("initial", ""))
    module, _, name = reference.partition(":")
    try:
        function = cast(Initial, getattr(importlib.import_module(module), name))
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            "run configuration", "initial", f"cannot load {reference!r} ({error})", 'give "module:function"'
        ) from error
    return function(run_config)


def log_events(event: Event) -> None:
    """The sink of a deployment: one line a round and a line for each refusal, in Flower's log."""
    if isinstance(event, RoundEnded):
        record = event.record
        state = f"void ({record.void})" if record.void else f"{len(record.admitted)}/{len(record.cohort)}"
        print(f"round {record.round}: {state} in {record.seconds:.2f} s", flush=True)
    elif isinstance(event, Refusal):
        print(f"round {event.round}: {event.cluster} refused, {event.reason}: {event.detail}", flush=True)


def make_app(
    initial: Arrays | None = None, sink: Sink = log_events, stop: threading.Event | None = None
) -> ServerApp:
    """A ServerApp; without `initial` the run configuration names the function that makes it."""
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        run_config = cast(dict[str, Scalar], dict(context.run_config))
        settings = Settings.parse(run_config)
        arrays = initial_arrays(run_config) if initial is None else initial
        Federation(settings, arrays, schema_hash(), sink, stop).run(grid)

    return server


app = make_app()
