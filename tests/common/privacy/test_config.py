# SPDX-License-Identifier: Apache-2.0
import math
import subprocess
import sys
import warnings
from typing import Any

import pytest

from shoal_common.errors import InputError
from shoal_common.privacy.config import PrivacyConfig, PrivacyWarning

GOOD: dict[str, Any] = {
    "delta": 1e-6,
    "clip_norm": 0.5,
    "batch": 128,
    "units_public": 10_000,
    "critic_steps": 1000,
    "noise_multiplier": 2.0,
}


def test_the_arithmetic_by_hand() -> None:
    config = PrivacyConfig(**GOOD)
    assert config.sample_rate == 0.0128
    assert config.sigma == 2.0
    assert config.noise_std == 1.0
    assert config.releases(0, 1000) == 1500
    assert config.releases(0, 1) == 1
    assert config.releases(1, 2) == 2
    assert config.releases(3, 8) == 5 + 3  # the actor moves after the 4th, 6th and 8th critic step
    assert sum(config.releases(step, step + 7) for step in range(0, 994, 7)) == config.releases(0, 994)
    assert config.budget == config.planned_epsilon
    assert not config.simulation


def test_without_an_actor_only_the_critic_releases() -> None:
    assert PrivacyConfig(**GOOD | {"actor_every": 0}).releases(0, 1000) == 1000


def test_the_noise_is_calibrated_to_the_last_planned_step() -> None:
    config = PrivacyConfig(**GOOD | {"noise_multiplier": None, "target_epsilon": 2.0})
    assert 1.98 < config.planned_epsilon <= 2.0
    assert config.budget == 2.0


@pytest.mark.parametrize(
    "field", ["delta", "clip_norm", "batch", "units_public", "critic_steps", "noise_multiplier"]
)
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "1", True])
def test_what_is_not_positive_and_finite_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InputError) as caught:
        PrivacyConfig(**GOOD | {field: value})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"noise_multiplier": None}, "noise_multiplier"),
        ({"target_epsilon": 1.0}, "noise_multiplier"),
        ({"noise_multiplier": None, "target_epsilon": -1.0}, "target_epsilon"),
        ({"noise_multiplier": None, "target_epsilon": math.nan}, "target_epsilon"),
        ({"batch": 10_001}, "batch"),
        ({"batch": 128.0}, "batch"),
        ({"units_public": 1e4}, "units_public"),
        ({"actor_every": -1}, "actor_every"),
        ({"actor_every": 1.5}, "actor_every"),
        ({"unit": "cluster"}, "unit"),
        ({"neighbouring": "replace_one"}, "neighbouring"),
        ({"simulation_seed": "7"}, "simulation_seed"),
        ({"delta": 1e-4}, "delta"),
        ({"delta": 0.5}, "delta"),
    ],
)
def test_contradictions_are_refused_by_name(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        PrivacyConfig(**GOOD | change)
    assert caught.value.field == field


def test_a_weak_delta_warns_and_a_good_one_does_not() -> None:
    with pytest.warns(PrivacyWarning, match="units_public"):
        PrivacyConfig(**GOOD | {"delta": 2e-5})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PrivacyConfig(**GOOD | {"delta": 1e-5})


def test_configuration_and_ledger_need_no_torch() -> None:
    code = (
        "import sys, shoal_common.privacy.config, shoal_common.privacy.ledger; print('torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "False"
