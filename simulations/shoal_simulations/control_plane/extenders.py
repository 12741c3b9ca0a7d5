# SPDX-License-Identifier: Apache-2.0
"""How kube-scheduler calls an extender, over real HTTP.

Source: pkg/scheduler/extender.go, staging/src/k8s.io/kube-scheduler/extender/v1/types.go, v1.36.2; measured
payloads and failures: docs/extender.md. Top-level keys are capitalised, answers are read in any case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import msgspec
import urllib3

DEFAULT_TIMEOUT_SECONDS = 5.0
HEADERS = {
    "User-Agent": "Go-http-client/1.1",
    "Content-Type": "application/json",
    "Accept-Encoding": "gzip",
}
MAX_NODE_SCORE, MAX_EXTENDER_PRIORITY = 100, 10
Content = Mapping[str, Any]


class ExtenderError(Exception):
    """The call failed; the message is what the scheduler puts into the pod's condition."""


@dataclass(frozen=True, slots=True)
class Stanza:
    """One entry of `extenders` in a KubeSchedulerConfiguration."""

    url_prefix: str
    filter_verb: str = ""
    prioritize_verb: str = ""
    bind_verb: str = ""
    weight: int = 1
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    node_cache_capable: bool = False
    ignorable: bool = False
    managed_resources: tuple[str, ...] = ()
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""


@dataclass(frozen=True, slots=True)
class Filtered:
    """What a filter call leaves: names in its order; refusals by name; whether full nodes came back."""

    kept: tuple[str, ...]
    failed: Mapping[str, str]
    unresolvable: Mapping[str, str]
    full_nodes: bool


@final
class Extender:
    """An extender as the scheduler holds it."""

    def __init__(self, stanza: Stanza) -> None:
        self.stanza = stanza
        self._pool = urllib3.PoolManager(
            maxsize=16,
            retries=False,
            timeout=urllib3.Timeout(total=stanza.timeout_seconds),
            ca_certs=stanza.ca_file or None,
            cert_reqs="CERT_REQUIRED" if stanza.ca_file else "CERT_NONE",
            cert_file=stanza.cert_file or None,
            key_file=stanza.key_file or None,
        )

    def is_interested(self, pod: Content) -> bool:
        """Whether the pod is sent: always, or only when it asks for one of the managed resources."""
        managed = self.stanza.managed_resources
        asked = {
            name
            for key in ("containers", "initContainers")
            for container in pod["spec"].get(key) or ()
            for side in ("requests", "limits")
            for name in (container.get("resources") or {}).get(side) or {}
        }
        return not managed or any(name in asked for name in managed)

    def filter(self, pod: Content, nodes: Mapping[str, Content]) -> Filtered:
        """Ask which of these nodes may host the pod; without a filter verb all.

        Raises:
            ExtenderError: no answer in time, not 200, an Error, or a node that was not given.
        """
        if not self.stanza.filter_verb:
            return Filtered(tuple(nodes), {}, {}, full_nodes=False)
        answer = _lower(self._call(self.stanza.filter_verb, self._arguments(pod, nodes)))
        if answer.get("error"):
            raise ExtenderError(str(answer["error"]))
        listed = answer.get("nodes")
        capable = self.stanza.node_cache_capable and answer.get("nodenames") is not None
        if capable:
            kept = tuple(answer["nodenames"])
        else:
            kept = tuple(node["metadata"]["name"] for node in (listed or {}).get("items") or ())
        for name in kept:
            if name not in nodes:
                raise ExtenderError(
                    f'extender "{self.stanza.url_prefix}" claims a filtered node "{name}" which is not found '
                    "in the input node list"
                )
        failed, never = answer.get("failednodes") or {}, answer.get("failedandunresolvablenodes") or {}
        return Filtered(kept, failed, never, full_nodes=not capable and listed is not None)

    def prioritize(self, pod: Content, nodes: Mapping[str, Content]) -> dict[str, int]:
        """What the extender adds to each node's score, weight and scale included; nothing without the verb.

        Raises:
            ExtenderError: no answer in time, not 200, or a score that Go would not read.
        """
        if not self.stanza.prioritize_verb:
            return {}
        answer = self._call(self.stanza.prioritize_verb, self._arguments(pod, nodes))
        if not isinstance(answer, list | None):
            raise ExtenderError("json: cannot unmarshal into Go value of type HostPriorityList")
        scale = self.stanza.weight * (MAX_NODE_SCORE // MAX_EXTENDER_PRIORITY)
        scores = {}
        for entry in map(_lower, answer or ()):
            score = entry.get("score", 0)
            if not isinstance(score, int) or isinstance(score, bool):
                raise ExtenderError(f"json: cannot unmarshal {score!r} into Go struct field of type int64")
            scores[str(entry.get("host", ""))] = score * scale
        return scores

    def bind(self, pod: Content, node: str) -> None:
        """Let the extender bind the pod.

        Raises:
            ExtenderError: it fails or says Error.
        """
        metadata = pod["metadata"]
        arguments = {
            "PodName": metadata["name"],
            "PodNamespace": metadata["namespace"],
            "PodUID": metadata["uid"],
            "Node": node,
        }
        answer = _lower(self._call(self.stanza.bind_verb, arguments))
        if answer.get("error"):
            raise ExtenderError(str(answer["error"]))

    def close(self) -> None:
        """Close every connection."""
        self._pool.clear()

    def _arguments(self, pod: Content, nodes: Mapping[str, Content]) -> dict[str, Any]:
        sent = {key: pod[key] for key in ("metadata", "spec", "status") if key in pod}
        if self.stanza.node_cache_capable:
            return {"Pod": sent, "Nodes": None, "NodeNames": list(nodes)}
        items = [
            {k: v for k, v in node.items() if k not in ("kind", "apiVersion")} for node in nodes.values()
        ]
        return {"Pod": sent, "Nodes": {"metadata": {}, "items": items}, "NodeNames": None}

    def _call(self, verb: str, arguments: Content) -> Any:
        url = f"{self.stanza.url_prefix.rstrip('/')}/{verb}"
        try:
            answer = self._pool.request("POST", url, body=msgspec.json.encode(arguments), headers=HEADERS)
        except urllib3.exceptions.TimeoutError as error:
            raise ExtenderError(f'Post "{url}": context deadline exceeded') from error
        except urllib3.exceptions.HTTPError as error:
            raise ExtenderError(f'Post "{url}": {error}') from error
        if answer.status != 200:
            raise ExtenderError(f"failed {verb} with extender at URL {url}, code {answer.status}")
        try:
            return msgspec.json.decode(answer.data)
        except msgspec.DecodeError as error:
            raise ExtenderError(str(error)) from error


def _lower(answer: Any) -> dict[str, Any]:
    """Go's decoder takes keys in any case."""
    if not isinstance(answer, Mapping):
        raise ExtenderError("json: cannot unmarshal into Go value of an object")
    return {key.lower(): value for key, value in answer.items()}


def in_order(extenders: Sequence[Extender]) -> list[Extender]:
    """The order of filter calls: those that may be ignored come last."""
    return sorted(extenders, key=lambda extender: extender.stanza.ignorable)
