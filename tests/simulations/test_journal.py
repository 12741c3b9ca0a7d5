# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from shoal_common.errors import ShoalError
from shoal_server.events import Refusal, RoundEnded, RoundRecord
from shoal_simulations.fleet import load_fleet
from shoal_simulations.run import VOID_ROUNDS, Progress, _Journal
from shoal_simulations.virtual import Run


def void(number: int, refused: dict[str, str]) -> RoundRecord:
    return RoundRecord(number, ("a",), (), refused, () if refused else ("a",), {}, 0.1, "no_update")


def journal(folder: Path, seen: list[Progress]) -> _Journal:
    run = Run(load_fleet("small"), 1)
    return _Journal(run, run.learner(), folder / "rewards.jsonl", seen.append)


def test_a_void_round_of_spent_clusters_is_only_noted(tmp_path: Path) -> None:
    seen: list[Progress] = []
    note, arrays = journal(tmp_path, seen), Run(load_fleet("small"), 1).learner().shared_state()
    for number in range(1, 3 + VOID_ROUNDS):
        note(RoundEnded(void(number, {}), arrays))
    assert [p.round for p in seen] == list(range(1, 3 + VOID_ROUNDS))


def test_clusters_that_fail_again_and_again_end_the_simulation_with_the_reason(tmp_path: Path) -> None:
    seen: list[Progress] = []
    note, arrays = journal(tmp_path, seen), Run(load_fleet("small"), 1).learner().shared_state()
    for number in range(1, VOID_ROUNDS):
        note(RoundEnded(void(number, {"a": "failed"}), arrays))
    note(Refusal(VOID_ROUNDS, "a", "failed", "OSError"))
    with pytest.raises(ShoalError, match="a: OSError"):
        note(RoundEnded(void(VOID_ROUNDS, {"a": "failed"}), arrays))


def test_a_torn_line_of_rewards_is_left_out(tmp_path: Path) -> None:
    note = journal(tmp_path, [])
    (tmp_path / "rewards.jsonl").write_bytes(
        b'{"round": 1, "reward": -0.5}\n{"rou\n[3]\n\xff\n{"round": 4, "reward": -1}\n'
    )
    assert note.rewards() == {1: -0.5, 4: -1.0}
