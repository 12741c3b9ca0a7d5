# SPDX-License-Identifier: Apache-2.0
"""Which node a time series is about: its labels, looked up in a table of names and addresses.

Exporters name nodes in many ways: `node` (relabelled), `kubernetes_node`, DCGM's `Hostname`, or only
`instance`, an address with a port. A name or address that two nodes claim is nobody's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, final

import msgspec

from shoal_common.pods import HOSTNAME, NodeRecord

CACHED: Final = 200_000

Labels = tuple[tuple[str, ...], tuple[str, ...]]


def host(address: str) -> str:
    """An address without port and brackets, in lower case: `10.0.0.1:9100`, `[fd00::1]:9100`, `node-1`."""
    text = address.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    head, _, port = text.rpartition(":")
    return head if head and port.isdigit() and ":" not in head else text


@final
class AddressBook:
    """Names, host names and addresses of the nodes, and what an exporter's instances call themselves."""

    def __init__(self, nodes: Mapping[str, NodeRecord], instances: Mapping[str, str] | None = None) -> None:
        """`instances` maps an `instance` to the host name behind it (`node_uname_info`)."""
        self._table: dict[str, str | None] = {}
        self._nodes: dict[tuple[str, ...], str | None] = {}
        self._places: dict[Labels, dict[bytes, tuple[str | None, tuple[str, ...]]]] = {}
        for name, node in nodes.items():
            for address in {host(a) for a in (*node.addresses, node.labels.get(HOSTNAME, "")) if a}:
                self._table[address] = None if address in self._table else name
        self._table |= {name.lower(): name for name in nodes}
        for instance, hostname in (instances or {}).items():
            known = self._table.get(host(hostname))
            if known is not None:
                self._table.setdefault(instance.lower(), known)

    def node(self, labels: Mapping[str, str], keys: Iterable[str]) -> str | None:
        """The node that the first label of `keys` with a known name or address tells; None without one."""
        values = tuple([labels.get(key, "") for key in keys])
        if values not in self._nodes:
            if len(self._nodes) > CACHED:
                self._nodes.clear()
            self._nodes[values] = self._look_up(values)
        return self._nodes[values]

    def _look_up(self, values: tuple[str, ...]) -> str | None:
        for value in filter(None, values):
            found = self._table.get(value.lower()) or self._table.get(host(value))
            if found:
                return found
        return None

    def places(
        self, metrics: Iterable[msgspec.Raw], keys: tuple[str, ...], also: tuple[str, ...] = ()
    ) -> list[tuple[str | None, tuple[str, ...]]]:
        """The node of each series and the values of the labels `also`, from labels as they came."""
        known = self._places.setdefault((keys, also), {})
        if len(known) > CACHED:
            known.clear()
        found = []
        for metric in map(bytes, metrics):
            place = known.get(metric)
            if place is None:
                labels = msgspec.json.decode(metric, type=dict[str, str])
                place = self.node(labels, keys), tuple([labels.get(name, "") for name in also])
                known[metric] = place
            found.append(place)
        return found
