# SPDX-License-Identifier: Apache-2.0
"""The rows of a live cluster: a `Cluster` with spare rows, one row a node for as long as the node is there.

A row is computed apart and copied in at once, so a reader that holds the GIL sees a row before or after a
change, never half of one; rows of different nodes may be of different moments. Rows without a node are
zeros (N_EXISTS = 0); they are given to new nodes, so a row's index stays below twice the nodes that ever
were there at once.
"""

from __future__ import annotations

from typing import Final, final

import numpy as np
import numpy.typing as npt

from shoal_client.state.node_state import NodeState
from shoal_common.cluster import MAX_GPUS, MAX_ZONES, NODE_COLUMNS, USE_COLUMNS, Cluster
from shoal_common.pods import NodeRecord

I64 = npt.NDArray[np.int64]
LEAST_ROWS: Final = 16
PRODUCT_LABEL: Final = "nvidia.com/gpu.product"
ZONE_LABEL: Final = "topology.kubernetes.io/zone"
RACK_LABEL: Final = "topology.kubernetes.io/rack"
SOFTWARE: Final = ("nvidia.com/cuda.", "nvidia.com/mig.", "nvidia.com/gpu.driver")


@final
class LiveTables:
    """Rows by node; not thread-safe."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self._free: list[int] = []
        self._zones: dict[str, int] = {}
        self._racks: dict[str, int] = {}
        self._names: list[str] = []
        self._models: list[str] = []
        self._software: list[dict[str, str]] = []
        self._renamed = False
        self._cluster = _empty(0)
        self._scratch = (
            np.zeros(NODE_COLUMNS), np.zeros(USE_COLUMNS), np.zeros(MAX_GPUS), np.zeros((MAX_ZONES, 2)),
        )  # fmt: skip

    @property
    def cluster(self) -> Cluster:
        """The tables; the same arrays until more rows are needed."""
        if self._renamed:
            c = self._cluster
            self._cluster = Cluster(
                tuple(self._names), c.node, c.use, c.gpu_free, c.zone_free, c.zone, c.rack, c.links,
                tuple(self._models), tuple(self._software),
            )  # fmt: skip
            self._renamed = False
        return self._cluster

    def add(self, name: str) -> int:
        """Give a node a row."""
        if not self._free:
            self._grow()
        row = self.rows[name] = self._free.pop()
        self._names[row] = name
        self._renamed = True
        return row

    def remove(self, name: str) -> int:
        """Take a node's row away; the row that was its."""
        row = self.rows.pop(name)
        c = self._cluster
        c.node[row], c.use[row], c.gpu_free[row], c.zone_free[row] = 0.0, 0.0, 0.0, 0.0
        c.zone[row] = c.rack[row] = -1
        self._names[row], self._models[row], self._software[row] = "", "", {}
        self._free.append(row)
        self._renamed = True
        return row

    def refill(self, state: NodeState, failures: float, now: float) -> bool:
        """Fill a node's row from its state; whether anything in it changed."""
        if state.record is None:
            return False
        node, use, gpu, zone = self._scratch
        state.fill(node, use, gpu, zone, failures, now)
        c, row, changed = self._cluster, state.row, False
        for table, fresh in ((c.node, node), (c.use, use), (c.gpu_free, gpu), (c.zone_free, zone)):
            if table[row].tobytes() != fresh.tobytes():
                table[row] = fresh
                changed = True
        return changed

    def describe(self, record: NodeRecord, row: int) -> None:
        """Take up what is not a number: zone, rack, model of the devices, software."""
        labels, c = record.labels, self._cluster
        c.zone[row] = _index(self._zones, labels.get(ZONE_LABEL, ""))
        c.rack[row] = _index(self._racks, labels.get(RACK_LABEL, ""))
        model = labels.get(PRODUCT_LABEL, "")
        software = {name: text for name, text in labels.items() if name.startswith(SOFTWARE)}
        if (model, software) != (self._models[row], self._software[row]):
            self._models[row], self._software[row] = model, software
            self._renamed = True

    def _grow(self) -> None:
        """Half as many rows again."""
        old, before = len(self._names), self._cluster
        size = max(LEAST_ROWS, old * 3 // 2)
        after = _empty(size)
        for name in ("node", "use", "gpu_free", "zone_free", "zone", "rack", "links"):
            getattr(after, name)[:old] = getattr(before, name)
        self._names += [""] * (size - old)
        self._models += [""] * (size - old)
        self._software += [{} for _ in range(size - old)]
        self._free = list(range(size - 1, old - 1, -1))
        self._cluster, self._renamed = after, True


def _index(known: dict[str, int], text: str) -> int:
    """A number for a label's text, -1 for none."""
    return known.setdefault(text, len(known)) if text else -1


def _empty(rows: int) -> Cluster:
    none = np.full(rows, -1, np.int32)
    return Cluster(
        names=("",) * rows,
        node=np.zeros((rows, NODE_COLUMNS)),
        use=np.zeros((rows, USE_COLUMNS)),
        gpu_free=np.zeros((rows, MAX_GPUS)),
        zone_free=np.zeros((rows, MAX_ZONES, 2)),
        zone=none.copy(),
        rack=none.copy(),
        links=np.zeros((rows, MAX_GPUS, MAX_GPUS), np.uint8),
        accelerator=("",) * rows,
        software=tuple({} for _ in range(rows)),
    )
