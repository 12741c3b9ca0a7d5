# SPDX-License-Identifier: Apache-2.0
"""What serving asks of the cluster's state: the seam to the informer's tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from shoal_common.cluster import Cluster
from shoal_common.pods import NodeRecord, PodRecord
from shoal_common.tables import App

I64 = npt.NDArray[np.int64]


class LiveState(Protocol):
    """The cluster as it was last seen; thread-safe."""

    @property
    def cluster(self) -> Cluster:
        """Tables with spare rows, which do not exist."""

    @property
    def nodes(self) -> Mapping[str, NodeRecord]:
        """Nodes by name."""

    @property
    def apps(self) -> Callable[[PodRecord], App | None]:
        """What is known of a pod's app."""

    @property
    def synced(self) -> bool:
        """Whether nodes and pods were listed once."""

    def rows(self, names: Sequence[str]) -> I64:
        """Rows of these nodes; -1 where a name is not known."""

    def take_changed(self) -> I64:
        """Rows that changed since this was last asked."""

    def insufficient(self, node: str, pod: PodRecord) -> tuple[str, ...]:
        """Why a node has no room for a pod, in kube-scheduler's words; () where it has."""

    def staleness_seconds(self, kind: str) -> float:
        """Seconds since the watch of this kind last heard from the API."""

    def namespace_labels(self, namespace: str) -> Mapping[str, str]:
        """Labels of a namespace; none where it is not known."""

    @property
    def pending(self) -> int:
        """Pods that wait for a node."""

    def rejecting(self, pod: PodRecord) -> tuple[str, ...]:
        """Nodes whose kubelet lately refused pods of this owner: to be avoided for a while."""

    def try_reserve(self, pod: PodRecord, node: str) -> tuple[str, ...]:
        """Hold a pod's room if there is any; what is lacking, () where it is held now."""

    def reserve(self, pod: PodRecord, node: str) -> None:
        """Hold a decided pod's room until it is bound, deleted or refused; replaces an earlier one."""

    def release(self, uid: str) -> None:
        """Give the room held for a pod free."""
