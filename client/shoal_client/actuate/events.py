# SPDX-License-Identifier: Apache-2.0
"""Events (`events.k8s.io/v1`) about what Shoal does to an object, few enough never to burden the API server.

One event per object, reason and `REPEAT_SECONDS`; over all objects at most `BURST` at once and one more
each second. What is beyond is dropped: the metrics count everything. A failing API server loses events,
nothing else.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shoal_client.kube.api import EVENTS, Api
from shoal_client.kube.resources import micro_time
from shoal_common.errors import ShoalError

REPEAT_SECONDS = 300.0
BURST = 25
REMEMBERED = 4096
LONGEST_NOTE = 1024  # validation of events.k8s.io/v1
CONTROLLER = "shoal.dev/client"


@dataclass(frozen=True, slots=True)
class Regarding:
    """The object an event is about."""

    api_version: str
    kind: str
    name: str
    uid: str
    namespace: str = ""


def about_pod(namespace: str, name: str, uid: str) -> Regarding:
    """An event's object for a pod."""
    return Regarding("v1", "Pod", name, uid, namespace)


class Events:
    """Sends events, rate limited. Thread-safe; never raises."""

    def __init__(self, api: Api, instance: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._api, self._instance, self._clock = api, instance, clock
        self._sent: dict[tuple[str, str], float] = {}
        self._tokens, self._filled = float(BURST), clock()
        self._mutex = threading.Lock()

    def emit(self, regarding: Regarding, reason: str, action: str, note: str, warning: bool = False) -> None:
        """Say that `action` was done (or not) to an object and why: `reason` is CamelCase."""
        with self._mutex:
            if not self._allowed((regarding.uid or regarding.name, reason)):
                return
        body = _event(regarding, reason, action, note, warning, self._instance)
        try:
            self._api.create(EVENTS, body, body["metadata"]["namespace"])
        except ShoalError:
            return

    def _allowed(self, key: tuple[str, str]) -> bool:
        now = self._clock()
        self._tokens = min(float(BURST), self._tokens + now - self._filled)
        self._filled = now
        if now - self._sent.get(key, float("-inf")) < REPEAT_SECONDS or self._tokens < 1:
            return False
        self._tokens -= 1
        if len(self._sent) >= REMEMBERED:
            self._sent.clear()
        self._sent[key] = now
        return True


def _event(
    regarding: Regarding, reason: str, action: str, note: str, warning: bool, instance: str
) -> Mapping[str, Any]:
    subject = {"apiVersion": regarding.api_version, "kind": regarding.kind, "name": regarding.name}
    if regarding.uid:
        subject["uid"] = regarding.uid
    if regarding.namespace:
        subject["namespace"] = regarding.namespace
    name = f"{regarding.name[:200]}.{secrets.token_hex(8)}"
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": regarding.namespace or "default"},
        "eventTime": micro_time(),
        "reportingController": CONTROLLER,
        "reportingInstance": instance,
        "action": action,
        "reason": reason,
        "regarding": subject,
        "type": "Warning" if warning else "Normal",
        "note": note[:LONGEST_NOTE],
    }
