# SPDX-License-Identifier: Apache-2.0
"""Objective weights that follow targets: integral control on the logarithm of a weight.

While a measured figure exceeds its target, the weight of the term that would lower it grows by at most
`STEP` (relative) each step, up to `LARGEST` times what the operator gave; below the target it falls back the
same way. Weights that were given as 0 stay 0: the operator said that they do not count. Source: the usual
dual ascent of constrained reinforcement learning (Tessler et al., "Reward constrained policy optimization",
ICLR 2019), in log space and bounded so that an unreachable target cannot crowd out the other terms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from shoal_client.collect.measured import Measured
from shoal_client.policies.registry import AppliedPolicy
from shoal_common.reward import ObjectiveWeights

STEP = 0.05
LARGEST = 4.0


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What was measured over the last minutes; None where not known."""

    sla_violations: float | None = None  # share of ended pods over their SLA
    power_watts: float | None = None  # of all nodes


@final
class PowerMeter:
    """The power of all nodes, from what was measured last; not known while it is not known of every node."""

    def __init__(self) -> None:
        self.watts: float | None = None

    def measured(self, table: Mapping[str, Measured]) -> None:
        """Take up one round of the collector."""
        found = [measured.watts for measured in table.values()]
        known = [watts for watts in found if watts is not None]
        self.watts = sum(known) if known and len(known) == len(found) else None


@final
class Adaptation:
    """Remembers how far each policy's weights have moved. For one thread."""

    def __init__(self) -> None:
        self._moved: dict[tuple[str, int], tuple[float, float]] = {}  # log factors on qos and energy

    def step(self, policy: AppliedPolicy, outcomes: Outcomes) -> ObjectiveWeights:
        """The weights that should hold now, one step after the last ones; without targets the spec's."""
        objectives, key = policy.spec.objectives, (policy.uid, policy.generation)
        qos, energy = self._moved.get(key, (0.0, 0.0))
        qos = _moved(qos, outcomes.sla_violations, objectives.targets.sla_violations)
        energy = _moved(energy, outcomes.power_watts, objectives.targets.power_watts)
        self._moved = {k: v for k, v in self._moved.items() if k[0] != policy.uid} | {key: (qos, energy)}
        grown = objectives.model_copy(
            update={"qos": objectives.qos * math.exp(qos), "energy": objectives.energy * math.exp(energy)}
        )
        return grown.weights()


def _moved(log_factor: float, measured: float | None, target: float | None) -> float:
    if target is None:
        return 0.0
    if measured is None:
        return log_factor
    excess = (measured - target) / max(target, 0.01)
    return min(max(log_factor + STEP * min(max(excess, -1.0), 1.0), 0.0), math.log(LARGEST))
