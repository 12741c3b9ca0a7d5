# SPDX-License-Identifier: Apache-2.0
"""From decisions and what is seen of their pods to closed transitions.

Two streams meet here, in any order: what was decided (`decided`, `refused`, from whoever serves decisions)
and what the API shows of pods (`pod_changed`). Every attempt closes exactly once, by the first rule that
applies; docs/experience.md lists them. Durations are monotonic. A call copies what it needs and returns; the
store's own thread writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shoal_client.experience.records import F32, Mode, Source
from shoal_common.observation import Observation
from shoal_common.pods import PodRecord


class PodChange(Protocol):
    """A pod before and after an event of the watch; None: it was not there, it is gone."""

    @property
    def before(self) -> PodRecord | None:
        """The pod as it was."""

    @property
    def after(self) -> PodRecord | None:
        """The pod as it is."""

    @property
    def at_monotonic(self) -> float:
        """When the change was seen, on the monotonic clock."""


class Decisions(Protocol):
    """What whoever serves decisions tells. Calls return at once and never raise into the serving path."""

    def decided(
        self,
        pod: PodRecord,
        observation: Observation,
        names: Sequence[str],
        *,
        chosen: int,
        source: Source,
        mode: Mode,
        policy: str,
        logits: F32 | None = None,
        propensities: F32 | None = None,
        quota: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        """Candidates were scored: call it once an attempt (in prioritize, not in filter as well).

        `observation` has B = 1 and N candidates, `names` their nodes; `chosen` is the flat candidate
        n * P + p that the policy prefers, -1 where it abstained. `logits` are its scores [N, P].
        `propensities` [N, P] are the probabilities with which the *cluster* would take each candidate: give
        them only where the policy's choice is what the scheduler does (active or canary, and a weight that
        dominates); None in shadow mode, where they are not known.
        """

    def refused(self, pod: PodRecord, reason: str, *, source: Source, mode: Mode, policy: str) -> None:
        """An attempt placed nothing, and why: all masked, a deadline, a policy that cannot run."""
