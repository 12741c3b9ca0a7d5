# SPDX-License-Identifier: Apache-2.0
"""What is known of a pod's app: its use and duration, learned from what ran before.

An app is what keeps deploying the same pods: the owner without what its controller appends (a ReplicaSet's
template hash, a CronJob's run), or what the annotation `shoal.dev/app` names. Means are exponential, so an
app that changes is followed. Exporters measure nodes; a node's use is shared among its pods in proportion to
what they are known to use, which settles as apps meet others on other nodes (a Kaczmarz step for each node).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from typing import Final, final

from shoal_client.experience.local_key import LocalKey
from shoal_common.pods import PodRecord
from shoal_common.tables import App

ANNOTATION: Final = "shoal.dev/app"
USE_RATE, DURATION_RATE = 0.1, 0.2  # weight of a new sample in the mean
ENOUGH: Final = 3  # samples from which a mean says something
MOST_APPS: Final = 10_000  # beyond it the one that was met longest ago is forgotten
RUN = re.compile(r"-\d{6,}$")  # a CronJob's Jobs end in the minute they were due

Row = tuple[str, float, float, float, int, int]


@dataclass(frozen=True, slots=True)
class _Known:
    cpu_use: float = 0.0  # millicores
    io_use: float = 0.0
    seconds: float = 0.0
    uses: int = 0  # samples of use
    ends: int = 0  # samples of duration


def app_name(pod: PodRecord) -> str:
    """The name of a pod's app within its namespace."""
    if ANNOTATION in pod.annotations:
        return f"{pod.namespace}/{pod.annotations[ANNOTATION]}"
    owner = pod.owner_name or pod.name
    if pod.owner_kind == "ReplicaSet":
        owner = owner.removesuffix("-" + pod.labels.get("pod-template-hash", ""))
    if pod.owner_kind == "Job":
        owner = RUN.sub("", owner)
    return f"{pod.namespace}/{pod.owner_kind}/{owner}"


@final
class AppHistory:
    """Apps by their hashed name. One thread writes, any thread asks."""

    def __init__(self, key: LocalKey, rows: Iterable[Row] = ()) -> None:
        """Begin with what a store holds."""
        self._key = key
        self._apps = {row[0]: _Known(*row[1:]) for row in rows}

    def __len__(self) -> int:
        return len(self._apps)

    def __call__(self, pod: PodRecord) -> App | None:
        """What is known of the pod's app, for `tables.pod_row`; None where nothing is."""
        known = self._apps.get(self.name(pod))
        if known is None:
            return None
        used, timed = known.uses >= ENOUGH, known.ends >= ENOUGH
        return App(
            cpu_use=known.cpu_use if used else None,
            io_use=known.io_use if used else None,
            duration_seconds=known.seconds if timed else None,
            samples=known.uses,
        )

    def name(self, pod: PodRecord) -> str:
        """The hashed name of the pod's app."""
        return self._key.name(app_name(pod))

    def mean_seconds(self, pod: PodRecord) -> float | None:
        """How long the app's pods ran on average; None where too few have ended."""
        known = self._apps.get(self.name(pod))
        return None if known is None or known.ends < ENOUGH else known.seconds

    def used(self, pod: PodRecord, cpu_millicores: float, io: float | None) -> None:
        """A running pod was measured, or its share of what was measured; I/O None: not known."""
        known = self._get(pod)
        if not math.isfinite(cpu_millicores) or cpu_millicores < 0:
            return
        io = known.io_use if io is None or not math.isfinite(io) or io < 0 else io
        rate = max(USE_RATE, 1 / (1 + known.uses))
        self._keep(pod, replace(
            known,
            cpu_use=known.cpu_use + rate * (cpu_millicores - known.cpu_use),
            io_use=known.io_use + rate * (io - known.io_use),
            uses=known.uses + 1,
        ))  # fmt: skip

    def ended(self, pod: PodRecord, seconds: float) -> None:
        """A pod of the app ended well after so many seconds; NaN: not known."""
        if not math.isfinite(seconds) or seconds <= 0:
            return
        known = self._get(pod)
        rate = max(DURATION_RATE, 1 / (1 + known.ends))
        mean = known.seconds + rate * (seconds - known.seconds)
        self._keep(pod, replace(known, seconds=mean, ends=known.ends + 1))

    def rows(self) -> list[Row]:
        """All apps, for the store."""
        return [(name, *astuple(known)) for name, known in list(self._apps.items())]

    def _get(self, pod: PodRecord) -> _Known:
        return self._apps.get(self.name(pod), _Known())

    def _keep(self, pod: PodRecord, known: _Known) -> None:
        name = self.name(pod)
        self._apps.pop(name, None)
        self._apps[name] = known
        if len(self._apps) > MOST_APPS:
            del self._apps[next(iter(self._apps))]
