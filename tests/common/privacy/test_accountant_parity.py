# SPDX-License-Identifier: Apache-2.0
"""Not below dp-accounting's privacy loss distribution, not 5 % above its Renyi accountant."""

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from shoal_common.privacy.accountant import Segment, epsilon

SEQUENCES = {
    "one release": [Segment(0.01, 1.0, 1)],
    "critic and actor": [Segment(0.0128, 1.0, 5000), Segment(0.0128, 1.0, 2500)],
    "many small": [Segment(0.00256, 1.0, 15_000)],
    "demo": [Segment(1024 / 48_000, 1.5, 1500)],
    "little noise": [Segment(0.0256, 0.7, 200)],
    "much noise": [Segment(0.032, 4.0, 3000)],
    "rounds that differ": [
        Segment(0.01, 1.0, 200),
        Segment(0.02, 1.3, 100),
        Segment(0.005, 0.9, 300),
        Segment(0.01, 2.0, 50),
    ],
    "a full batch among them": [Segment(1.0, 20.0, 5), Segment(0.05, 3.0, 100)],
    "large rate": [Segment(0.5, 6.0, 100)],
}


@pytest.mark.parametrize("delta", [1e-5, 1e-6])
@pytest.mark.parametrize("name", SEQUENCES)
def test_between_the_two_reference_accountants(name: str, delta: float) -> None:
    tight, loose = PLDAccountant(value_discretization_interval=1e-3), RdpAccountant()
    for segment in SEQUENCES[name]:
        event = dp_accounting.GaussianDpEvent(segment.noise_multiplier)
        if segment.sample_rate < 1:
            event = dp_accounting.PoissonSampledDpEvent(segment.sample_rate, event)
        tight.compose(event, segment.steps)
        loose.compose(event, segment.steps)
    ours = epsilon(SEQUENCES[name], delta)
    assert tight.get_epsilon(delta) <= ours <= 1.05 * loose.get_epsilon(delta)
