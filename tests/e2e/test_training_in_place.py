# SPDX-License-Identifier: Apache-2.0
"""The trainer process through Flower's unchanged shim, and kill -9 of either side: one charge a round."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from shoal_client.app import make_app as make_client
from shoal_client.train import RoundConfig
from shoal_client.training.remote import RemoteTrainer, ask
from shoal_common.learners.federated import initial
from shoal_common.policy import PolicyArtifact
from shoal_common.privacy.ledger import Ledger
from shoal_server.events import RoundEnded
from shoal_server.settings import Settings
from shoal_server.strategy import Federation
from shoal_simulations.grid import Host, LocalGrid, Serial, node_ids

sys.path.insert(0, str(Path(__file__).parents[1] / "client"))
from live_store import fill_store

pytestmark = pytest.mark.e2e

SHOAL = [sys.executable, "-c", "from shoal_common.cli import main; main()", "client", "train"]
SETTINGS = {
    "width": 8, "updates": 200, "batch": 32, "units-public": 200, "rounds": 5, "capacity": 500,
    "trainer": "shoal_client.training.remote:make_trainer",
}  # fmt: skip
ASK = """
import sys
from pathlib import Path
from shoal_client.training.remote import RemoteTrainer
from shoal_client.train import RoundConfig
from shoal_common.learners.federated import initial
settings = {settings}
RemoteTrainer(Path(sys.argv[1]), settings).round(initial(settings), RoundConfig(1, "run", "schema"))
"""


class Trainer:
    """A real `shoal client train`; `kill` is kill -9, `start` starts it again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.socket = folder, folder / "trainer.sock"
        self.log = (folder / "log").open("wb")

    def start(self) -> None:
        options = ["--cluster", "one", "--data", str(self.folder), "--epsilon", "80", "--delta", "1e-4"]
        self.process = subprocess.Popen([*SHOAL, *options], stderr=self.log)

    def ready(self) -> None:
        until = time.monotonic() + 60
        while True:
            try:
                ask(self.socket, {"ask": "ping"}, silent_seconds=5)
                return
            except OSError:
                assert time.monotonic() < until, (self.folder / "log").read_text()
                time.sleep(0.05)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def ledger(self):
        return Ledger(self.folder / "training" / "ledger.jsonl").rows


@pytest.fixture
def trainer(tmp_path):
    fill_store(tmp_path / "experience", 150)
    running = Trainer(tmp_path)
    running.start()
    yield running
    running.process.terminate()
    try:
        assert running.process.wait(5) == 0  # SIGTERM ends it within 5 s
    finally:
        running.process.kill()
        running.log.close()


def _until(condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.005)


def test_a_trainer_killed_in_a_round_is_asked_again_and_charges_once(trainer):
    trainer.ready()
    client, shipped = RemoteTrainer(trainer.socket, SETTINGS), []
    ledger, state = trainer.folder / "training" / "ledger.jsonl", trainer.folder / "training" / "runs" / "run"
    moments = (
        (state / "marks.json").exists,  # it trains
        lambda: ledger.exists() and ledger.stat().st_size > 0,  # it has charged
        (state / "round-000003").exists,  # it has stored, and may be answering
    )
    for number, moment in enumerate(moments, start=1):
        if number == 3:
            trainer.ready()

        def ship(number=number):
            shipped.append(client.round(initial(SETTINGS), RoundConfig(number, "run", "schema")))

        asking = threading.Thread(target=ship)
        asking.start()
        _until(moment)
        trainer.kill()
        trainer.start()
        asking.join(120)
        assert len(shipped) == number
    rows = trainer.ledger()
    ranges = [(row.round, row.step_begin, row.step_end) for row in rows]
    assert ranges == [(1, 0, 200), (2, 200, 400), (3, 400, 600)]
    assert [update.ledger_head for update in shipped] == [row.hash for row in rows]
    again = client.round(initial(SETTINGS), RoundConfig(3, "run", "schema"))
    assert again.to_bytes() == shipped[-1].to_bytes()


def test_a_shim_killed_in_a_round_finds_it_done(trainer):
    trainer.ready()
    state = trainer.folder / "training" / "runs" / "run"
    code = ASK.format(settings=SETTINGS)
    shim = subprocess.Popen([sys.executable, "-c", code, str(trainer.socket)])
    _until((state / "marks.json").exists)
    os.kill(shim.pid, signal.SIGKILL)
    shim.wait()
    update = RemoteTrainer(trainer.socket, SETTINGS).round(initial(SETTINGS), RoundConfig(1, "run", "schema"))
    (row,) = trainer.ledger()
    assert update.ledger_head == row.hash


def test_a_federation_trains_through_the_unchanged_shim(trainer):
    settings = SETTINGS | {"updates": 20, "rounds": 2, "max-update-rms": 10.0}
    ended = []
    nodes = node_ids([{"cluster": "one", "trainer-socket": str(trainer.socket)}])
    with LocalGrid(Serial(Host(make_client(), nodes, settings)), nodes) as grid:
        from shoal_common.observation import schema_hash

        federation = Federation(Settings.parse(settings), initial(settings), schema_hash(), ended.append)
        federation.run(grid)
    rounds = [event.record for event in ended if isinstance(event, RoundEnded)]
    assert [(record.round, len(record.admitted)) for record in rounds] == [(1, 1), (2, 1)]
    assert [row.round for row in trainer.ledger()] == [1, 2]
    latest = trainer.folder / "training" / "policies" / "latest"
    _until(lambda: latest.exists() and latest.resolve().name.endswith("000002"))
    assert PolicyArtifact.load(latest).manifest["privacy"]["epsilon"] == trainer.ledger()[-1].epsilon_after
