# SPDX-License-Identifier: Apache-2.0
"""What a scorer answers for one pod: who may host it, why others may not, every plugin's score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

UNSCHEDULABLE = "Unschedulable"  # evicting other pods could help
UNRESOLVABLE = "UnschedulableAndUnresolvable"  # nothing the scheduler can do makes the node fit


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node cannot host the pod: kube-scheduler's own sentences and status code."""

    reasons: tuple[str, ...]
    code: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Scores of one pod over one snapshot.

    `scores[node][plugin]` is after normalisation, times weight; a plugin that had nothing to say is absent.
    kube-scheduler's scores are whole numbers, Volcano's binpack and the learned ones are not.
    """

    feasible: tuple[str, ...]
    failures: Mapping[str, tuple[str, ...]]
    codes: Mapping[str, str]
    scores: Mapping[str, Mapping[str, float]]
    total: Mapping[str, float]

    def document(self, name: str) -> dict[str, object]:
        """This verdict as a row of a golden file; `feasible` is null where no node is (Go's nil list)."""
        return {
            "name": name,
            "failures": {node: list(reasons) for node, reasons in sorted(self.failures.items())},
            "codes": dict(sorted(self.codes.items())),
            "feasible": list(self.feasible) or None,
            "scores": {node: dict(sorted(row.items())) for node, row in sorted(self.scores.items())},
            "total": dict(sorted(self.total.items())),
        }
