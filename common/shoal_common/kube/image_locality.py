# SPDX-License-Identifier: Apache-2.0
"""ImageLocality: prefer nodes that already hold the pod's images, weighted by how widespread each image is.

score = 100 * (sum - 23 MiB) / (1000 MiB * containers - 23 MiB), where sum adds size * (nodes with it / nodes)
over the pod's images on the node, and is clamped to [23 MiB, 1000 MiB * containers].
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal_common.kube.plugin import MAX_NODE_SCORE
from shoal_common.kube.snapshot import NodeInfo, Snapshot
from shoal_common.pods import PodRecord

NAME = "ImageLocality"
MIN_BYTES = 23 * 2**20
MAX_CONTAINER_BYTES = 1000 * 2**20


def score_nodes(snapshot: Snapshot, pod: PodRecord, candidates: Sequence[NodeInfo]) -> list[int]:
    """Score the bytes that need not be pulled; images of volumes count, but not as containers."""
    wanted = [normalised_name(image) for image in (*pod.images, *pod.volume_images)]
    total_nodes = len(snapshot.nodes)
    worth = {
        name: int(snapshot.images[name][0] * (snapshot.images[name][1] / total_nodes))
        for name in wanted
        if name in snapshot.images
    }
    scores = []
    for info in candidates:
        present = {name for image in info.node.images for name in image.names} if worth else set()
        scores.append(_score(sum(worth.get(n, 0) for n in wanted if n in present), len(pod.images)))
    return scores


def _score(sum_bytes: int, containers: int) -> int:
    if not containers:  # a record of a trace, whose images nobody wrote down
        return 0
    most = MAX_CONTAINER_BYTES * containers
    clamped = min(max(sum_bytes, MIN_BYTES), most)
    return MAX_NODE_SCORE * (clamped - MIN_BYTES) // (most - MIN_BYTES)


def normalised_name(image: str) -> str:
    """The image's name with `:latest` where it has neither tag nor digest."""
    return image if image.rfind(":") > image.rfind("/") else image + ":latest"
