# SPDX-License-Identifier: Apache-2.0
"""What may enter an aggregate. One wrong, broken or hostile cluster must never end a run or bend the model.

Flower's stock strategies let a single bad reply end the run (wrong shape, other keys, negative weight) or
poison the mean (NaN, huge values). Here each reply is either admitted or refused with a countable reason.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Final, final

import numpy as np

from shoal_common.wire import F32, Layout, Reply, WireError, decode_update

_DETAIL: Final = 300  # characters


class Reason(StrEnum):
    """Why a reply stayed outside the aggregate."""

    ERROR = "error"  # the client raised
    TIMEOUT = "timeout"  # no reply by the deadline
    MALFORMED = "malformed"  # not what the wire contract says
    NOT_SELECTED = "not_selected"  # outside the cohort, or a node that speaks for another cluster
    DUPLICATE = "duplicate"  # a second reply of the same cluster
    STALE = "stale"  # of another round
    SCHEMA = "schema"  # other feature tables, reward or action version (all are in the schema hash)
    KEYS = "keys"  # missing or unknown arrays
    SHAPE = "shape"
    DTYPE = "dtype"  # anything but float32
    NOT_FINITE = "not_finite"
    NORM = "norm"  # further from the global model than the public bound


class Refused(Exception):
    """A reply that may not enter: its reason and one line of detail.

    The detail may quote the other side, so it is cut and cleaned of what is not printable before it reaches
    a log or a terminal.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        cut = detail if len(detail) <= _DETAIL else detail[:_DETAIL] + "..."
        clean = "".join(c if c.isprintable() else "?" for c in cut)
        super().__init__(f"{reason}: {clean}")
        self.reason, self.detail = reason, clean


@final
class Admission:
    """The gate of one round: its cohort, its global model and the public bound on an update's L2 norm."""

    def __init__(
        self,
        round_number: int,
        schema_hash: str,
        cohort: Collection[str],
        layout: Layout,
        model: F32,
        max_norm: float,
    ) -> None:
        self._round, self._schema = round_number, schema_hash
        self._cohort, self._layout = frozenset(cohort), layout
        self._model, self._max_norm = model, max_norm
        self._difference = np.empty_like(model)
        self._answered: set[str] = set()

    def identify(self, cluster: str, reply: Reply) -> None:
        """Is it selected, new, of this round and of this schema? `cluster` is what the node is known as."""
        if cluster not in self._cohort or reply.cluster != cluster:
            raise Refused(Reason.NOT_SELECTED, f"node of {cluster!r} spoke as {reply.cluster!r}")
        if cluster in self._answered:
            raise Refused(Reason.DUPLICATE, f"{cluster} has answered round {self._round}")
        self._answered.add(cluster)
        if reply.round != self._round:
            raise Refused(Reason.STALE, f"round {reply.round} instead of {self._round}")
        if reply.schema_hash != self._schema:
            raise Refused(Reason.SCHEMA, f"{reply.schema_hash[:12]} instead of {self._schema[:12]}")

    def screen(self, cluster: str, reply: Reply) -> F32 | None:
        """The admitted vector, read-only; None for a cluster that is spent; else raises `Refused`."""
        self.identify(cluster, reply)
        if reply.spent:
            return None
        try:
            vector = decode_update(reply, self._layout)
        except WireError as error:
            raise Refused(Reason(error.kind), error.detail) from error
        self._bound(vector)
        return vector

    def _bound(self, vector: F32) -> None:
        """One pass: a NaN or infinity anywhere makes the squared norm not finite."""
        with np.errstate(over="ignore", invalid="ignore"):
            np.subtract(vector, self._model, out=self._difference)
            squared = float(np.dot(self._difference, self._difference))
        if not np.isfinite(squared) and not np.isfinite(vector).all():
            raise Refused(Reason.NOT_FINITE, "NaN or infinity in the arrays")
        if not squared <= self._max_norm**2:
            raise Refused(Reason.NORM, f"L2 norm {squared**0.5:.3g} above {self._max_norm:.3g}")
