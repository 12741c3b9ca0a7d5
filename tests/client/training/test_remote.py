# SPDX-License-Identifier: Apache-2.0
"""The trainer behind its socket: what crosses, what fails, and that whoever goes away costs no round."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager

import numpy as np
import pytest

from shoal_client.train import RoundConfig
from shoal_client.training.remote import (
    Broken,
    RemoteTrainer,
    ask,
    make_trainer,
    receive_frame,
    send_frame,
)
from shoal_client.training.server import TrainerServer
from shoal_common.errors import BudgetExhausted, Fatal, InputError, LedgerCorrupt, Transient
from shoal_common.privacy.shared_update import SharedUpdate

MODEL = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.ones((), np.float32)}
SETTINGS = {"width": 8, "noise-multiplier": 1.5, "trainer": "x:y", "privacy": True}


class Rounds:
    """Adds 1 to the model and remembers what it was asked; a round may wait, or raise."""

    def __init__(self) -> None:
        self.asked, self.published, self.stored = [], 0, {}
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        self.error: Exception | None = None

    def round(self, global_state, config, settings):
        self.asked.append((config, dict(settings), {n: a.copy() for n, a in global_state.items()}))
        self.begun.set()
        assert self.go_on.wait(20)
        if self.error is not None:
            raise self.error
        arrays = {name: np.asarray(array + 1, np.float32) for name, array in global_state.items()}
        update = SharedUpdate("one", config.round, config.schema_hash, arrays, "", None, None, "")
        return self.stored.setdefault(config.round, update)

    def publish(self):
        self.published += 1


@contextmanager
def serving(path, rounds):
    server = TrainerServer(path, rounds)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        rounds.go_on.set()
        server.stop()
        thread.join()
        server.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trainer.sock"


def _config(number=1):
    return RoundConfig(number, "run", "schema")


def test_a_round_goes_there_and_back(path):
    rounds = Rounds()
    with serving(path, rounds):
        update = RemoteTrainer(path, SETTINGS).round(MODEL, _config(3))
    config, settings, arrays = rounds.asked[0]
    assert (config, settings) == (_config(3), SETTINGS)
    for name, array in MODEL.items():
        np.testing.assert_array_equal(arrays[name], array)
        np.testing.assert_array_equal(update.arrays[name], array + 1)
    assert (update.round, update.schema_hash, rounds.published) == (3, "schema", 1)


def test_only_the_owner_reaches_the_socket_and_it_is_gone_at_the_end(path):
    with serving(path, Rounds()):
        assert path.stat().st_mode & 0o777 == 0o600
    assert not path.exists()


def test_it_answers_a_ping_while_a_round_runs(path):
    rounds = Rounds()
    rounds.go_on.clear()
    with serving(path, rounds):
        shipped = []
        client = RemoteTrainer(path, {})
        asking = threading.Thread(target=lambda: shipped.append(client.round(MODEL, _config())))
        asking.start()
        assert rounds.begun.wait(10)
        assert ask(path, {"ask": "ping"}, silent_seconds=5) == b""
        rounds.go_on.set()
        asking.join()
    assert len(shipped) == 1


@pytest.mark.parametrize(
    "error",
    [BudgetExhausted("spent"), LedgerCorrupt("broken"), InputError("where", "field", "is odd", "mend it")],
)
def test_what_the_trainer_raises_is_raised_here(path, error):
    rounds = Rounds()
    rounds.error = error
    with serving(path, rounds), pytest.raises(type(error)) as caught:
        RemoteTrainer(path, {}).round(MODEL, _config())
    assert str(caught.value) == str(error)
    assert rounds.published == 0


def test_an_unknown_error_is_fatal_and_the_next_round_goes_on(path):
    rounds = Rounds()
    rounds.error = ZeroDivisionError("odd")
    with serving(path, rounds):
        trainer = RemoteTrainer(path, {})
        with pytest.raises(Fatal, match="ZeroDivisionError"):
            trainer.round(MODEL, _config())
        rounds.error = None
        assert trainer.round(MODEL, _config()).round == 1


def test_a_policy_that_cannot_be_published_harms_no_round(path):
    rounds = Rounds()
    rounds.publish = lambda: 1 / 0
    with serving(path, rounds):
        trainer = RemoteTrainer(path, {})
        assert [trainer.round(MODEL, _config(n)).round for n in (1, 2)] == [1, 2]


def test_who_went_away_finds_the_round_done(path):
    rounds = Rounds()
    rounds.go_on.clear()
    with serving(path, rounds):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(path))
            from safetensors.numpy import save

            head = {"ask": "round", "round": 1, "run": "run", "schema": "schema", "settings": {}}
            send_frame(peer, head, save(MODEL))
            assert rounds.begun.wait(10)
        rounds.go_on.set()
        update = RemoteTrainer(path, {}).round(MODEL, _config())
    assert update is not rounds.stored[1]
    assert update.to_bytes() == rounds.stored[1].to_bytes()


def test_a_trainer_that_comes_late_or_falls_silent_is_asked_again(path):
    mute = socket.socket(socket.AF_UNIX)
    mute.bind(str(path))
    mute.listen()  # takes connections and never answers
    client, shipped = RemoteTrainer(path, {}, silent_seconds=0.2), []
    asking = threading.Thread(target=lambda: shipped.append(client.round(MODEL, _config())))
    asking.start()
    peer, _ = mute.accept()
    peer.close()
    mute.close()
    with serving(path, Rounds()):
        asking.join(20)
    assert len(shipped) == 1


def test_no_trainer_is_transient_once_the_patience_is_over(path):
    with pytest.raises(Transient, match="no trainer at"):
        RemoteTrainer(path, {}, patience_seconds=0.3).round(MODEL, _config())


def test_a_second_trainer_is_refused_and_a_dead_ones_socket_taken(path):
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(path))
    dead.close()
    with serving(path, Rounds()), pytest.raises(InputError, match="another trainer"):
        TrainerServer(path, Rounds())


def test_a_path_too_long_for_a_socket_is_told(tmp_path):
    with pytest.raises(InputError, match="107 bytes"):
        TrainerServer(tmp_path / ("x" * 120), Rounds())
    (tmp_path / "precious").write_text("words")
    with pytest.raises(InputError, match="something other than a socket is there"):
        TrainerServer(tmp_path / "precious", Rounds())
    assert (tmp_path / "precious").read_text() == "words"


@pytest.mark.parametrize(
    "data", [b"\xff" * 12, b"\0\0\0\2" + b"\0" * 8 + b"{{", b"\0\0\0\2" + b"\0" * 8 + b"[]", b"\0"]
)
def test_nonsense_on_the_wire_is_broken(data):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        theirs.close()
        ours.settimeout(5)
        with pytest.raises(Broken):
            receive_frame(ours)


def test_the_node_configuration_names_the_socket(tmp_path, monkeypatch):
    rounds = Rounds()
    with serving(tmp_path / "s", rounds):
        make_trainer({"trainer-socket": str(tmp_path / "s")}, SETTINGS).round(MODEL, _config())
        monkeypatch.setenv("SHOAL_TRAINER_SOCKET", str(tmp_path / "s"))
        make_trainer({}, SETTINGS).round(MODEL, _config(2))
    assert [settings for _, settings, _ in rounds.asked] == [SETTINGS, SETTINGS]


def test_a_frame_without_a_body_needs_no_peer_after_its_header():
    """Its reader may close at once; sending nothing into that would be an error."""

    class Gone:
        sent = b""

        def sendall(self, data):
            assert not self.sent, "the peer closed after the header"
            self.sent = data

    peer = Gone()
    send_frame(peer, {"state": "done"})
    assert b"done" in peer.sent
