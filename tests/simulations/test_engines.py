# SPDX-License-Identifier: Apache-2.0
"""Engines: the same bits from any number of workers, errors that stay put, nobody left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from flwr.app import Message, RecordDict

from shoal_common import wire
from shoal_common.errors import InputError
from shoal_server.events import Ending, Refusal
from shoal_simulations.engines import run
from shoal_simulations.grid import LocalGrid, node_ids
from shoal_simulations.shards import Shards

sys.path.insert(0, str(Path(__file__).parent))
import toy_trainers

CLUSTERS = [{"cluster": f"c{i}"} for i in range(5)]
WALK = {"max-update-rms": 10.0, "rounds": 4, "trainer": "toy_trainers:walk"}
ODD = {"max-update-rms": 10.0, "rounds": 2, "trainer": "toy_trainers:odd"}


def test_one_two_and_four_workers_give_the_same_bits():
    outcomes = [run(CLUSTERS, WALK, initial=toy_trainers.initial(), workers=n) for n in (1, 2, 4)]
    assert len({outcome.sha256 for outcome in outcomes}) == 1
    assert all(len(record.admitted) == 5 for record in outcomes[1].history)
    assert outcomes[0].sha256 != run(CLUSTERS, {**WALK, "rounds": 3}, initial=toy_trainers.initial()).sha256


@pytest.mark.parametrize("workers", [1, 2])
def test_what_goes_wrong_in_one_cluster_stays_there(workers, capfd, caplog):
    does = {"c1": "raise", "c2": "spent", "c3": "spoil"}
    clusters = [{**config, "does": does.get(config["cluster"], "walk")} for config in CLUSTERS]
    events = []
    outcome = run(clusters, ODD, initial=toy_trainers.initial(), workers=workers, sink=events.append)
    for record in outcome.history:
        assert record.admitted == ("c0", "c3", "c4")
        assert dict(record.refused) == {"c1": "error"}
        assert record.spent == ("c2",)
    details = [event.detail for event in events if isinstance(event, Refusal)]
    assert details == ["c1: RuntimeError; the cause is in this cluster's own log"] * 2
    assert "broken on purpose" in capfd.readouterr().err + caplog.text  # the cluster's own log


def test_a_worker_that_dies_costs_its_clusters_one_round():
    clusters = [{**config, "does": "die" if config["cluster"] == "c0" else "walk"} for config in CLUSTERS]
    outcome = run(clusters, {**ODD, "rounds": 3}, initial=toy_trainers.initial(), workers=2)
    refused = [dict(record.refused) for record in outcome.history]
    assert refused[0] == {}
    assert refused[1] == {"c0": "error", "c2": "error", "c4": "error"}  # one worker holds these
    assert refused[2] == {}


def test_a_worker_that_dies_while_it_is_given_work_answers_with_errors():
    nodes = node_ids(CLUSTERS)
    shards = Shards(nodes, WALK, 2)
    with LocalGrid(shards, nodes) as grid:
        first = shards._shards[0].process
        first.kill()
        first.wait()
        first.poll = lambda: None  # nobody has noticed yet
        messages = [Message(RecordDict(), node, wire.HELLO) for node in nodes]
        replies = list(grid.send_and_receive(messages, timeout=30))
    assert [reply.has_error() for reply in sorted(replies, key=lambda r: r.metadata.src_node_id)] == [
        True, False, True, False, True,
    ]  # fmt: skip


def test_initial_arrays_by_name():
    named = run(CLUSTERS, {**WALK, "initial": "toy_trainers:initial"})
    assert named.sha256 == run(CLUSTERS, WALK, initial=toy_trainers.initial()).sha256


@pytest.mark.parametrize(
    ("clusters", "change", "options"),
    [
        ([], {}, {}),
        ([{"cluster": "a"}, {"cluster": "a"}], {}, {}),
        ([{"name": "a"}], {}, {}),
        (CLUSTERS, {"rounds": "many"}, {}),
        (CLUSTERS, {}, {"engine": "mpi"}),
        (CLUSTERS, {}, {"workers": 0}),
        (CLUSTERS, {"initial": "no_such_module:f"}, {"initial": None}),
        (CLUSTERS, {"initial": ""}, {"initial": None}),
    ],
)
def test_wrong_settings_are_refused_in_one_line(clusters, change, options):
    with pytest.raises(InputError) as caught:
        run(clusters, {**WALK, **change}, **{"initial": toy_trainers.initial(), **options})
    assert "\n" not in str(caught.value)


def test_a_trainer_that_cannot_be_loaded_is_that_clusters_error():
    outcome = run(CLUSTERS[:1], {"rounds": 1, "trainer": "nowhere:f"}, initial=toy_trainers.initial())
    assert dict(outcome.history[0].refused) == {"c0": "error"}


def test_workers_have_one_thread_and_the_allocators_setting():
    shards = Shards(node_ids(CLUSTERS), WALK, 2)
    try:
        for pid in shards.pids:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            assert b"MALLOC_MMAP_THRESHOLD_=4294967296" in environment
            assert b"MALLOC_TRIM_THRESHOLD_=4294967296" in environment
            assert b"OMP_NUM_THREADS=1" in environment
    finally:
        shards.close()
    assert not any(_alive(pid) for pid in shards.pids)


def _alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


PARENT = """
import signal, sys, toy_trainers
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits "ignore"
from shoal_server.events import RoundEnded
from shoal_simulations import engines, shards

def tell(event):
    if isinstance(event, RoundEnded):
        print("round", event.record.round, flush=True)

start = shards._start
def noted(setup):
    shard = start(setup)
    print("worker", shard.process.pid, flush=True)
    return shard
shards._start = noted
clusters = [{"cluster": "a", "does": "sleep"}, {"cluster": "b", "does": "sleep"}]
config = {"rounds": 1000, "trainer": "toy_trainers:odd"}
outcome = engines.run(clusters, config, initial=toy_trainers.initial(), workers=2, sink=tell)
print("ending", outcome.ending, flush=True)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_behind(how):
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=env, start_new_session=True
    )
    with parent:
        pids = []
        for line in parent.stdout:
            word, number = line.split()
            if word == "worker":
                pids.append(int(number))
            if word == "round":
                break
        assert len(pids) == 2
        assert all(_alive(pid) for pid in pids)
        if how == signal.SIGINT:
            os.killpg(parent.pid, how)  # as a terminal does: the workers get it too
        else:
            parent.kill()
        rest = parent.stdout.read()
    assert ("ending stopped" in rest) == (how == signal.SIGINT)
    deadline = time.monotonic() + 5
    while any(_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_alive(pid) for pid in pids)


@pytest.mark.e2e
def test_flowers_own_engine_gives_the_same_bits(tmp_path):
    code = f"""
import sys, toy_trainers
from shoal_simulations.engines import run
config = {{"rounds": 2, "trainer": "toy_trainers:walk", "max-update-rms": 10.0}}
config["state-dir"] = {str(tmp_path)!r}
clusters = [{{"cluster": "a"}}, {{"cluster": "b"}}]
print(run(clusters, config, initial=toy_trainers.initial(), engine="ray", workers=1).sha256)
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=180, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    outcome = run([{"cluster": "a"}, {"cluster": "b"}], {**WALK, "rounds": 2}, initial=toy_trainers.initial())
    assert outcome.ending == Ending.COMPLETED
    assert done.stdout.split()[-1] == outcome.sha256


RAY_PARENT = """
import os, signal, toy_trainers
signal.signal(signal.SIGINT, signal.default_int_handler)
from shoal_server.events import RoundEnded
from shoal_simulations.engines import run

def interrupt(event):
    if isinstance(event, RoundEnded):
        os.kill(os.getpid(), signal.SIGINT)

config = {"rounds": 1000, "trainer": "toy_trainers:walk"}
outcome = run([{"cluster": "a"}], config, initial=toy_trainers.initial(), engine="ray", sink=interrupt)
print(outcome.ending)
"""


@pytest.mark.e2e
def test_ctrl_c_under_flowers_engine_stops_the_run_and_leaves_nobody(tmp_path):
    mark = f"SHOAL_TEST_MARK={tmp_path.name}-{os.getpid()}"
    name, _, value = mark.partition("=")
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), name: value}
    command = [sys.executable, "-c", RAY_PARENT]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=180, check=False)
    assert done.stdout.split()[-1] == "stopped", done.stderr[-2000:]
    deadline = time.monotonic() + 10
    while _marked(mark) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert _marked(mark) == []


def _marked(mark: str) -> list[int]:
    """Processes that inherited our environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found
