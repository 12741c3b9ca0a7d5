# SPDX-License-Identifier: Apache-2.0
"""What single pods were lately measured to use, for the actions that need it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import final

from shoal_client.collect.measured import Measured, PodName, PodUse
from shoal_client.state.live import LiveCluster
from shoal_common.pods import PodRecord

KEPT_SECONDS = 180.0


@final
class MeasuredUse:
    """The last measurements of all pods; a listener of the collector."""

    def __init__(self, cluster: LiveCluster, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster, self._clock = cluster, clock
        self._pods: Mapping[PodName, PodUse] = {}
        self._largest: Mapping[str, float] = {}  # owner UID -> bytes of its largest pod
        self._at = float("-inf")

    def measured(self, table: Mapping[str, Measured]) -> None:
        """Take up the measurements of every node."""
        pods = {name: use for node in table.values() for name, use in node.pods.items()}
        largest: dict[str, float] = {}
        for pod in list(self._cluster.pods.values()):
            use = pods.get((pod.namespace, pod.name))
            if use is not None and use.memory_bytes is not None and pod.owner_uid:
                largest[pod.owner_uid] = max(use.memory_bytes, largest.get(pod.owner_uid, 0.0))
        self._pods, self._largest, self._at = pods, largest, self._clock()

    def cores(self) -> dict[PodName, float]:
        """CPU in use of every pod that is known."""
        if not self._fresh():
            return {}
        known = self._pods.items()
        return {name: u.cpu_millicores / 1000 for name, u in known if u.cpu_millicores is not None}

    def memory_bytes(self, pod: PodRecord) -> float | None:
        """Memory in use of the largest pod of the same owner; None where none was measured."""
        return self._largest.get(pod.owner_uid) if self._fresh() else None

    def _fresh(self) -> bool:
        return self._clock() - self._at <= KEPT_SECONDS
