# SPDX-License-Identifier: Apache-2.0
"""An attempt that has placed nothing yet, and which of its candidates a bind has taken."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import final

import numpy as np

from shoal_client.experience.local_key import LocalKey
from shoal_client.experience.records import Seen
from shoal_client.experience.store import Choice


@final
@dataclass(slots=True)
class OpenAttempt:
    """Candidates in memory (all of them, until they are given up) and as they are stored."""

    id: int
    full: Seen | None
    kept: Seen | None
    full_chosen: int = -1  # the policy's choice, flat
    kept_chosen: int = -1
    left: bool = False  # by an earlier process: names are hashed
    reason: str = ""  # the last refusal that was heard of

    @property
    def full_bytes(self) -> int:
        """Memory of the candidates in full."""
        return 0 if self.full is None else size(self.full)

    def taken(self, node: str, key: LocalKey, rng: np.random.Generator) -> tuple[Choice, bool]:
        """The candidate that a bind to `node` took, and whether it may be learned from: seen and feasible.

        The propensity is known only of the policy's own choice. A node that is not among the stored
        candidates is looked up among all of them; then others are drawn to stand beside it.
        """
        name = key.name(node) if self.left else node
        if self.kept is not None and name in self.kept.names:
            return _among(self.kept, name, self.kept_chosen)
        if self.full is None or name not in self.full.names:
            return Choice(-1), False
        choice, sound = _among(self.full, name, self.full_chosen)
        seen, action = self.full.reduced(choice.action, rng)
        return Choice(action, choice.propensity, seen, self._again(seen)), sound

    def _again(self, seen: Seen) -> int:
        """The policy's choice among other candidates; -1 where it is none of them."""
        if self.full is None or self.full_chosen < 0:
            return -1
        profiles = self.full.mask.shape[1]
        name = self.full.names[self.full_chosen // profiles]
        return seen.names.index(name) * profiles + self.full_chosen % profiles if name in seen.names else -1


def _among(seen: Seen, name: str, chosen: int) -> tuple[Choice, bool]:
    """The taken candidate of a node: the policy's where it chose the node, else its first feasible one."""
    node, profiles = seen.names.index(name), seen.mask.shape[1]
    if chosen >= 0 and chosen // profiles == node:
        propensity = float(seen.propensity.reshape(-1)[chosen])
        return Choice(chosen, propensity), bool(seen.mask.reshape(-1)[chosen])
    profile = int(seen.mask[node].argmax())
    return Choice(node * profiles + profile), bool(seen.mask[node, profile])


def size(seen: Seen) -> int:
    """Memory of candidates in bytes, names not counted."""
    return sum(getattr(seen, f.name).nbytes for f in fields(Seen) if f.name != "names")
