# SPDX-License-Identifier: Apache-2.0
"""Run a federation of virtual clusters: in process, in worker processes, or by Flower's own engine on Ray.

The ServerApp, the ClientApp and the messages are the same in all three.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final, final

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from shoal_client.app import make_app as make_client
from shoal_common.errors import InputError, ShoalError
from shoal_common.wire import Arrays
from shoal_server.app import make_app as make_server
from shoal_server.events import Event, Outcome, RunEnded, Sink
from shoal_simulations.grid import Executor, Host, LocalGrid, NodeConfig, Serial, node_ids
from shoal_simulations.shards import Shards

ENGINES: Final = ("in-process", "ray")
_STOP_SECONDS: Final = 10.0  # for the ServerApp's thread to notice


@final
class _Capture:
    """Passes events on and keeps the outcome."""

    def __init__(self, sink: Sink | None) -> None:
        self._sink = sink
        self.outcome: Outcome | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunEnded):
            self.outcome = event.outcome
        if self._sink is not None:
            self._sink(event)


def run(
    clusters: Sequence[NodeConfig],
    run_config: NodeConfig,
    *,
    initial: Arrays | None = None,
    engine: str = "in-process",
    workers: int = 1,
    sink: Sink | None = None,
    stop: threading.Event | None = None,
) -> Outcome:
    """Run, or resume, a federation.

    `clusters` are node configurations, each with its name under `cluster`; `run_config` holds the keys of
    `shoal_server.settings.Settings` (with dashes), `trainer` = "module:function", and whatever the trainer
    reads. Without `initial` arrays `run_config` names their function under `initial`. `sink` gets events as
    they happen; `stop` ends the run. On Ctrl-C the run ends as "stopped", with its checkpoint.

    Raises: `InputError` on wrong settings, `Transient` where too few clusters join.
    """
    _check(clusters, engine, workers)
    capture, stop = _Capture(sink), stop or threading.Event()
    server = make_server(initial, capture, stop)
    if engine == "ray":
        _run_ray(server, clusters, run_config, workers, stop)
    else:
        _run_in_process(server, clusters, run_config, workers)
    if capture.outcome is None:
        raise ShoalError("the run ended without an outcome")
    return capture.outcome


def _check(clusters: Sequence[NodeConfig], engine: str, workers: int) -> None:
    names = [str(config.get("cluster", "")) for config in clusters]
    if not names or len(set(names)) < len(names) or "" in names:
        raise InputError("clusters", "cluster", "names are missing or repeated", "name each cluster once")
    if engine not in ENGINES:
        raise InputError(
            "--engine", "engine", f"{engine!r} is unknown", f"choose one of {', '.join(ENGINES)}"
        )
    if workers < 1:
        raise InputError("--workers", "workers", f"{workers} is not at least 1", "give 1 or more")


def _run_in_process(
    server: ServerApp, clusters: Sequence[NodeConfig], run_config: NodeConfig, workers: int
) -> None:
    nodes = node_ids(clusters)
    executor: Executor
    if workers == 1:
        executor = Serial(Host(make_client(), nodes, run_config))
    else:
        executor = Shards(nodes, run_config, min(workers, len(nodes)))
    with LocalGrid(executor, nodes) as grid:
        server(grid, _server_context(run_config))


def _server_context(run_config: NodeConfig) -> Context:
    return Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=dict(run_config))


@final
class _Bound:
    """The ClientApp for Ray, whose contexts know neither our clusters nor our run configuration.

    It is pickled for every message, so it refers to the ClientApp of the actor's process and its trainers.
    """

    def __init__(self, clusters: Sequence[NodeConfig], run_config: NodeConfig) -> None:
        self._clusters, self._run_config = list(clusters), dict(run_config)

    def __call__(self, message: Message, context: Context) -> Message:
        from shoal_client.app import app

        partition = context.node_config["partition-id"]
        config = self._clusters[int(partition)]
        bound = Context(context.run_id, context.node_id, dict(config), context.state, dict(self._run_config))
        return app(message, bound)


def _run_ray(
    server: ServerApp,
    clusters: Sequence[NodeConfig],
    run_config: NodeConfig,
    workers: int,
    stop: threading.Event,
) -> None:
    """Flower's simulation runtime; the ServerApp runs in a thread of this process."""
    from flwr.simulation import run_simulation

    bound = ServerApp()
    failure: list[BaseException] = []
    ended = threading.Event()

    @bound.main()
    def main(grid: Grid, _: Context) -> None:
        try:
            server(grid, _server_context(run_config))
        except BaseException as error:
            failure.append(error)  # Flower would wrap it; the caller gets the one line it was
            raise
        finally:
            ended.set()

    try:
        run_simulation(
            bound,
            _Bound(clusters, run_config),  # type: ignore[arg-type]  # a ClientApp is used as a callable only
            len(clusters),
            backend_config={
                "init_args": {"num_cpus": workers},
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            },
        )
    except KeyboardInterrupt:
        stop.set()
        ended.wait(_STOP_SECONDS)
    except Exception:
        if failure:
            raise failure[0] from None
        raise
