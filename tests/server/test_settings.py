# SPDX-License-Identifier: Apache-2.0
"""Settings from a run configuration: types, ranges, one line each."""

from __future__ import annotations

import numpy as np
import pytest

from shoal_common.errors import InputError
from shoal_server.settings import Settings


def test_keys_have_dashes_and_others_are_left_to_the_client():
    got = Settings.parse({"rounds": 5, "max-update-rms": 2, "weights": "a=2, b=50", "trainer": "x:y"})
    assert (got.rounds, got.max_update_rms) == (5, 2.0)
    assert got.max_update_norm(9) == 6.0  # 2 * sqrt(9)
    assert got.public_weights() == {"a": 2.0, "b": 10.0}  # clipped


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rounds", 0),
        ("rounds", "3"),
        ("rounds", True),
        ("fraction", 0.0),
        ("fraction", 1.5),
        ("quorum", 0),
        ("min-clusters", 0),
        ("join-timeout-seconds", -1.0),
        ("round-timeout-seconds", float("inf")),
        ("max-update-rms", 0.0),
        ("max-update-rms", float("nan")),
        ("max-update-rms", float("inf")),
        ("weights", "a=-1"),
        ("weights", "a=nan"),
        ("weights", "a"),
        ("checkpoint-dir", 3),
    ],
)
def test_a_wrong_value_gets_one_line_with_its_key(key, value):
    with pytest.raises(InputError, match=key) as caught:
        Settings.parse({key: value})
    assert "\n" not in str(caught.value)


def test_the_digest_holds_what_decides_the_result():
    model = {"x": np.zeros(2, np.float32)}
    base = Settings().digest("s", model)
    assert (
        Settings(rounds=9, checkpoint_dir="/elsewhere", round_timeout_seconds=3.0).digest("s", model) == base
    )
    others = [
        Settings(seed=1).digest("s", model),
        Settings(weights="a=2").digest("s", model),
        Settings(fleet_digest="f").digest("s", model),
        Settings().digest("t", model),
        Settings().digest("s", {"x": np.zeros(3, np.float32)}),
    ]
    assert len({base, *others}) == 6
