# SPDX-License-Identifier: Apache-2.0
"""Whether whoever made a pod still wants it: a suspended or deleted owner's pods are not held back."""

from __future__ import annotations

import time
from collections.abc import Callable

from shoal_client.kube.api import JOBS, REPLICA_SETS, STATEFUL_SETS, Api, NotFound
from shoal_common.errors import Fatal
from shoal_common.pods import PodRecord

LOOKED_UP = {resource.kind: resource for resource in (JOBS, REPLICA_SETS, STATEFUL_SETS)}
KEPT_SECONDS = 5.0
REMEMBERED = 4096


class Owners:
    """Answers from the API, kept for a few seconds: the pods of one owner come in bursts."""

    def __init__(self, api: Api, clock: Callable[[], float] = time.monotonic) -> None:
        self._api, self._clock = api, clock
        self._known: dict[str, tuple[float, bool]] = {}

    def wants(self, pod: PodRecord) -> bool:
        """False when the owner is gone, being deleted or suspended; True for owners that are not looked up.

        Raises:
            Transient: the API did not answer.
        """
        if pod.owner_kind not in LOOKED_UP:
            return True
        since, answer = self._known.get(pod.owner_uid, (float("-inf"), True))
        if self._clock() - since < KEPT_SECONDS:
            return answer
        answer = self._ask(pod)
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[pod.owner_uid] = (self._clock(), answer)
        return answer

    def _ask(self, pod: PodRecord) -> bool:
        try:
            owner = self._api.get(LOOKED_UP[pod.owner_kind], pod.owner_name, pod.namespace)
        except NotFound:
            return False
        except Fatal:
            return True  # not allowed to look: as with owners that are not looked up
        metadata, spec = owner["metadata"], owner.get("spec") or {}
        same = not pod.owner_uid or metadata.get("uid") == pod.owner_uid
        return bool(same and not metadata.get("deletionTimestamp") and not spec.get("suspend"))
