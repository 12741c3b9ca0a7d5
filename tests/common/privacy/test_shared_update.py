# SPDX-License-Identifier: Apache-2.0
import math
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import numpy as np
import pytest

from shoal_common.errors import InputError
from shoal_common.privacy.shared_update import SharedUpdate


def update_of(**changes: Any) -> SharedUpdate:
    settings: dict[str, Any] = {
        "cluster": "edge-1",
        "round": 3,
        "schema_hash": "ab" * 32,
        "arrays": {"z": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.float32([math.nan, 1e-30])},
        "ledger_head": "cd" * 32,
        "epsilon": 1.2345678901234567,
        "delta": 1e-6,
        "unit": "transition",
    }
    return SharedUpdate(**(settings | changes))


def test_round_trip_keeps_every_bit_and_the_order() -> None:
    update = update_of()
    again = SharedUpdate.from_bytes(update.to_bytes())
    assert list(again.arrays) == ["z", "a"]
    for name, array in update.arrays.items():
        assert array.dtype == again.arrays[name].dtype == np.float32
        assert array.tobytes() == again.arrays[name].tobytes()
        assert array.shape == again.arrays[name].shape
    for field in fields(SharedUpdate):
        if field.name != "arrays":
            assert getattr(again, field.name) == getattr(update, field.name)
    assert again.to_bytes() == update.to_bytes()


def test_round_trip_without_privacy_and_of_odd_shapes() -> None:
    arrays = {"scalar": np.array(1.5, np.float32), "none": np.zeros((0, 3), np.float32)}
    update = update_of(epsilon=None, delta=None, ledger_head="", unit="", arrays=arrays)
    again = SharedUpdate.from_bytes(update.to_bytes())
    assert (again.epsilon, again.delta) == (None, None)
    assert {name: array.shape for name, array in again.arrays.items()} == {"scalar": (), "none": (0, 3)}
    transposed = update_of(arrays={"t": np.arange(6, dtype=np.float32).reshape(2, 3).T})
    assert np.array_equal(SharedUpdate.from_bytes(transposed.to_bytes()).arrays["t"], transposed.arrays["t"])


def test_later_training_does_not_change_an_update() -> None:
    weights = np.zeros(3, np.float32)
    update = update_of(arrays={"w": weights})
    weights += 1
    assert update.arrays["w"].tolist() == [0, 0, 0]


def test_it_travels_between_processes() -> None:
    again = pickle.loads(pickle.dumps(update_of()))
    assert again.to_bytes() == update_of().to_bytes()


def test_there_is_no_room_for_anything_else() -> None:
    update = update_of()
    with pytest.raises(FrozenInstanceError):
        update.round = 4  # type: ignore[misc]
    with pytest.raises((AttributeError, TypeError)):
        object.__setattr__(update, "num_examples", 300)
    with pytest.raises(TypeError):
        SharedUpdate(num_examples=300, **{f.name: getattr(update, f.name) for f in fields(update)})  # type: ignore[call-arg]
    assert {field.name for field in fields(SharedUpdate)} == {
        *("cluster", "round", "schema_hash", "arrays", "ledger_head", "epsilon", "delta", "unit", "releases")
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cluster", 3),
        ("round", -1),
        ("round", 1.0),
        ("round", True),
        ("schema_hash", None),
        ("ledger_head", ""),
        ("epsilon", math.nan),
        ("epsilon", math.inf),
        ("epsilon", -1.0),
        ("epsilon", True),
        ("delta", None),
        ("delta", 0.0),
        ("unit", None),
        ("releases", (0.5,)),
        ("arrays", {"w": np.zeros(3)}),
        ("arrays", {"count": np.zeros(3, np.int64)}),
        ("arrays", {"w": [1.0]}),
        ("arrays", {"": np.zeros(3, np.float32)}),
        ("arrays", {1: np.zeros(3, np.float32)}),
        ("arrays", None),
    ],
)
def test_what_does_not_belong_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InputError) as caught:
        update_of(**{field: value})
    assert caught.value.field == field


def test_a_damaged_file_is_one_line() -> None:
    content = update_of().to_bytes()
    for damaged in (b"", content[:4], content[:60], content[:-1], b"x" * 100, content + b"x"):
        with pytest.raises(InputError, match="shared update"):
            SharedUpdate.from_bytes(damaged)


def test_replacing_a_field_validates_again() -> None:
    with pytest.raises(InputError):
        replace(update_of(), round=-1)
