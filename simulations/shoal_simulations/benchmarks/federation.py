# SPDX-License-Identifier: Apache-2.0
"""What a federated round costs without its training: our in-process engine against Flower's engine on Ray.

The same ServerApp, ClientApp, messages and no-op trainer run under both, one after the other on the same
machine. Ray's start-up and first round are left out of its figure.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any, Final, final

import numpy as np

from shoal_client.train import RoundConfig
from shoal_common.privacy.shared_update import SharedUpdate
from shoal_common.wire import F32, Arrays
from shoal_server.events import Event, RoundEnded, RoundStarted
from shoal_simulations.benchmarks.memory import resident_bytes
from shoal_simulations.engines import run as run_federation
from shoal_simulations.grid import NodeConfig

_TRAINER: Final = "shoal_simulations.benchmarks.federation:noop"
_TENSORS: Final = 20  # as many as an actor and a twin critic have
_RSS_FROM_ROUND: Final = 10
_FIRST_ROUND: Final = """
import time; start = time.perf_counter()
from shoal_simulations.benchmarks.federation import first_round
print(first_round(start, {clients}, {parameters}))
"""


@final
class NoOp:
    """Sends the model back as it came."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster

    def round(self, global_state: Mapping[str, F32], config: RoundConfig) -> SharedUpdate:
        """The same arrays."""
        return SharedUpdate(self._cluster, config.round, config.schema_hash, global_state, "", None, None, "")


def noop(node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> NoOp:
    """The `trainer` of this benchmark."""
    return NoOp(str(node_config["cluster"]))


@final
class _Clock:
    """Keeps each round's seconds, when the first one started, and resident memory after each."""

    def __init__(self, start: float) -> None:
        self._start = start
        self.first = 0.0
        self.seconds: list[float] = []
        self.resident: list[int] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, RoundStarted) and not self.first:
            self.first = time.perf_counter() - self._start
        if isinstance(event, RoundEnded):
            self.seconds.append(event.record.seconds)
            self.resident.append(resident_bytes())


def model(parameters: int) -> Arrays:
    """A model of this many parameters in 20 arrays."""
    rng = np.random.default_rng(0)
    sizes = np.diff(np.linspace(0, parameters, _TENSORS + 1).astype(int))
    return {f"layer{i:02d}": rng.normal(size=int(n)).astype(np.float32) for i, n in enumerate(sizes)}


def _measure(engine: str, clients: int, parameters: int, rounds: int, start: float | None = None) -> _Clock:
    clock = _Clock(start if start is not None else time.perf_counter())
    clusters = [{"cluster": f"cluster-{i:04d}"} for i in range(clients)]
    workers = 1 if engine == "in-process" else len(os.sched_getaffinity(0))
    config: NodeConfig = {"rounds": rounds, "trainer": _TRAINER}
    run_federation(clusters, config, initial=model(parameters), engine=engine, workers=workers, sink=clock)
    return clock


def first_round(start: float, clients: int, parameters: int) -> float:
    """Seconds from `start` to the first round of an in-process run."""
    return _measure("in-process", clients, parameters, 1, start).first


def _fresh_first_round(clients: int, parameters: int) -> float:
    """The same in a new process, with all imports."""
    code = _FIRST_ROUND.format(clients=clients, parameters=parameters)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    return float(done.stdout)


def _tasks_per_second(clients: int, seconds: list[float]) -> float:
    """Of all rounds but the first."""
    return clients * len(seconds[1:]) / sum(seconds[1:])


def run(
    quick: bool,
    rounds: int | None = None,
    clients: int = 100,
    parameters: int = 200_000,
) -> dict[str, Any]:
    """Measure both engines. `quick`: fewer rounds; 20-40 s on two cores, most of it Ray's start."""
    rounds = rounds or (40 if quick else 200)
    ray_rounds = 3 if quick else 10
    logging.getLogger("flwr").setLevel(logging.ERROR)
    first = _fresh_first_round(clients, parameters)
    ours = _measure("in-process", clients, parameters, rounds)
    began = time.perf_counter()
    peer = _measure("ray", clients, parameters, ray_rounds)
    ray_seconds = time.perf_counter() - began
    rate, peer_rate = _tasks_per_second(clients, ours.seconds), _tasks_per_second(clients, peer.seconds)
    early, late = ours.resident[min(_RSS_FROM_ROUND, rounds) - 1], ours.resident[-1]
    return {
        "clients": clients,
        "parameters": parameters,
        "note": "quick: fewer rounds of both engines, all clients" if quick else "all rounds",
        "in_process": {
            "rounds": rounds,
            "client_tasks_per_second": rate,
            "milliseconds_per_client": 1000 / rate,
            "first_round_starts_seconds": first,
            "resident_mb_round_10": early / 1e6,
            "resident_mb_last_round": late / 1e6,
            "resident_growth": late / early - 1,
        },
        "flower_ray": {
            "rounds": ray_rounds,
            "client_tasks_per_second": peer_rate,
            "milliseconds_per_client": 1000 / peer_rate,
            "first_round_starts_seconds": peer.first,
            "total_seconds": ray_seconds,
        },
        "ratio": rate / peer_rate,
        "required_ratio": 7.0,
    }
