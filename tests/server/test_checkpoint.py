# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: whole or not there, of this run or refused."""

from __future__ import annotations

import numpy as np
import pytest

from shoal_common.errors import InputError
from shoal_server.checkpoint import Checkpoint, Checkpoints
from shoal_server.events import RoundRecord

RECORD = RoundRecord(1, ("a", "b"), ("a",), {"b": "norm"}, (), {"a": 0.5}, 1.25)


def _checkpoint(number, value=1.0):
    arrays = {"scalar": np.array(value, np.float32), "none": np.zeros((0, 2), np.float32)}
    return Checkpoint(number, arrays, (RECORD,))


def test_round_trip(tmp_path):
    Checkpoints(tmp_path, "digest", 3).save(_checkpoint(1, 4.0))
    got = Checkpoints(tmp_path, "digest", 3).latest()
    assert (got.round, got.history) == (1, (RECORD,))
    assert got.arrays["scalar"].shape == ()
    assert float(got.arrays["scalar"]) == 4.0
    assert got.arrays["none"].shape == (0, 2)


def test_nothing_yet(tmp_path):
    assert Checkpoints(tmp_path / "new", "digest", 3).latest() is None


def test_only_the_newest_are_kept(tmp_path):
    store = Checkpoints(tmp_path, "digest", 2)
    for number in range(1, 12):
        store.save(_checkpoint(number))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-000010", "round-000011"]


@pytest.mark.parametrize("damage", ["arrays.safetensors", "state.json"])
def test_a_torn_checkpoint_is_passed_over(tmp_path, damage):
    store = Checkpoints(tmp_path, "digest", 3)
    store.save(_checkpoint(1))
    store.save(_checkpoint(2))
    path = tmp_path / "round-000002" / damage
    path.write_bytes(path.read_bytes()[:-3])
    assert store.latest().round == 1


def test_a_checkpoint_that_was_being_written_is_not_seen(tmp_path):
    store = Checkpoints(tmp_path, "digest", 3)
    store.save(_checkpoint(1))
    (tmp_path / ".round-000002").mkdir()
    assert store.latest().round == 1
    store.save(_checkpoint(2))
    assert store.latest().round == 2


def test_another_configuration_is_refused_in_one_line(tmp_path):
    Checkpoints(tmp_path, "digest", 3).save(_checkpoint(1))
    with pytest.raises(InputError, match="another configuration") as caught:
        Checkpoints(tmp_path, "other", 3).latest()
    assert "\n" not in str(caught.value)


def test_the_cohort_of_the_round_in_progress(tmp_path):
    store = Checkpoints(tmp_path, "digest", 3)
    assert store.cohort(4) is None
    store.save_cohort(4, ("a", "c"))
    assert store.cohort(4) == ("a", "c")
    assert store.cohort(5) is None
    assert Checkpoints(tmp_path, "other", 3).cohort(4) is None
