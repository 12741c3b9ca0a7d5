# SPDX-License-Identifier: Apache-2.0
"""Epsilon of a sequence of Poisson-subsampled Gaussian releases, and the noise that a target epsilon needs.

Renyi differential privacy by dp-accounting (Mironov, Talwar, Zhang 2019, arXiv 1908.10530; conversion by
Canonne, Kamath, Steinke 2020, arXiv 2004.00010), under add-or-remove-one neighbours. Renyi divergences add up
over releases, also when sample rate and noise change between rounds, so the divergences of one release are
computed once per (sample rate, noise multiplier) and everything after is a multiplication. No state is kept.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from shoal_common.errors import InputError

MAX_NOISE_MULTIPLIER = 1e5


@dataclass(frozen=True)
class Segment:
    """A run of equal releases: each a Gaussian mechanism on a Poisson sample of the units.

    `sample_rate` is the probability with which a unit is included; `noise_multiplier` the noise standard
    deviation over the clip norm; `steps` how many releases.
    """

    sample_rate: float
    noise_multiplier: float
    steps: int


def epsilon(segments: Iterable[Segment], delta: float) -> float:
    """Epsilon of all segments together at this delta; 0 for no release."""
    from dp_accounting.rdp import compute_epsilon

    steps: dict[tuple[float, float], int] = {}
    for segment in segments:
        key = (segment.sample_rate, segment.noise_multiplier)
        steps[key] = steps.get(key, 0) + segment.steps
    total = np.zeros(len(_orders()))
    for (sample_rate, noise_multiplier), count in sorted(steps.items()):
        if count:
            total += count * _divergences(sample_rate, noise_multiplier)
    if not total.any():
        return 0.0
    return float(compute_epsilon(_orders(), total, delta)[0])


@lru_cache(maxsize=64)
def calibrate(sample_rate: float, steps: int, delta: float, target_epsilon: float) -> float:
    """The smallest noise multiplier (to 1 in 1,000, rounded to the safe side) that keeps epsilon <= target.

    Raises:
        InputError: no noise below 100,000 times the clip norm reaches the target.
    """

    def spent(noise_multiplier: float) -> float:
        return epsilon([Segment(sample_rate, noise_multiplier, steps)], delta)

    low, high = 0.25, 0.5
    while spent(high) > target_epsilon:
        low, high = high, 2 * high
        if high > MAX_NOISE_MULTIPLIER:
            problem = f"{target_epsilon:g} cannot be reached in {steps} releases"
            raise InputError("privacy", "target_epsilon", problem, "raise it, or plan fewer steps")
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spent(middle) <= target_epsilon else (middle, high)
    return high


def group_epsilon(segment: Segment, records: int, delta: float) -> float:
    """Epsilon for whoever owns this many units, all of which come or go together.

    Each release holds a binomial number of them, each clipped, so it is a mixture of Gaussians; dp-accounting
    composes its privacy loss distribution: an upper bound, on a grid that takes about a second and is coarse
    for small figures (a third too high at epsilon 0.5).
    """
    from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
    from dp_accounting.pld import PLDAccountant
    from scipy.stats import binom

    most = min(records, int(binom.isf(1e-15, records, segment.sample_rate)) + 1)
    weights = np.asarray(binom.pmf(np.arange(most + 1), records, segment.sample_rate), dtype=np.float64)
    weights[-1] = max(0.0, 1 - weights[:-1].sum())  # the tail counts as the largest number kept
    scale = segment.steps * (records * segment.sample_rate / segment.noise_multiplier) ** 2
    ledger = PLDAccountant(value_discretization_interval=max(0.02, 5e-6 * scale))
    event = MixtureOfGaussiansDpEvent(
        segment.noise_multiplier, tuple(float(count) for count in range(most + 1)), tuple(weights)
    )
    ledger.compose(event, segment.steps)
    return float(ledger.get_epsilon(delta))


@lru_cache(maxsize=1)
def _orders() -> tuple[float, ...]:
    from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

    return tuple(float(order) for order in DEFAULT_RDP_ORDERS)


@lru_cache(maxsize=4096)
def _divergences(sample_rate: float, noise_multiplier: float) -> NDArray[np.float64]:
    """Renyi divergences of one release at every order; 20-90 ms, hence the cache."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    event = dp_accounting.GaussianDpEvent(noise_multiplier)
    if sample_rate < 1:
        event = dp_accounting.PoissonSampledDpEvent(sample_rate, event)
    accountant = RdpAccountant(_orders())
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns of orders that it leaves out, which is sound and of no interest
    try:
        accountant.compose(event)
    finally:
        logger.setLevel(level)
    divergences = np.asarray(accountant._rdp, dtype=np.float64)
    divergences.setflags(write=False)
    return divergences
