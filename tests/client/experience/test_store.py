# SPDX-License-Identifier: Apache-2.0
"""The store: bounds, caps, hashed names, and that nothing acknowledged is lost."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from shoal_client.experience.database import NAME
from shoal_client.experience.local_key import LocalKey
from shoal_client.experience.reader import ExperienceReader
from shoal_client.experience.records import DecisionRecord, Result, Seen
from shoal_client.experience.store import Choice, ExperienceStore, StoreConfig
from shoal_common.cluster import POD_COLUMNS
from shoal_common.errors import InputError, SchemaMismatch
from shoal_common.observation import FC, FN, FP, FT

RESULT = Result("running", reward=(-0.1, -0.2, -0.3, -0.4), seconds=300.0, learnable=True)


def _seen(nodes=3, seed=0):
    rng = np.random.default_rng(seed)
    return Seen(
        node=rng.random((nodes, FN)).astype(np.float16),
        pair=rng.random((nodes, FP)).astype(np.float16),
        task=rng.random(FT).astype(np.float16),
        ctx=rng.random(FC).astype(np.float16),
        mask=np.ones((nodes, 1), np.bool_),
        logits=rng.random((nodes, 1)).astype(np.float32),
        propensity=np.full((nodes, 1), 1 / nodes, np.float32),
        names=tuple(f"node-{n}" for n in range(nodes)),
    )


def _record(number, tenant="t", seen=True):
    return DecisionRecord(
        id=number, uid=f"u{number}", attempt=1, at=float(number), source="extender", scheduler="s",
        mode="active", policy="digest", tenant=tenant, app="app", pod=np.arange(float(POD_COLUMNS)),
        seen=_seen(seed=number) if seen else None, chosen=1 if seen else -1,
    )  # fmt: skip


def _rows(directory):
    with ExperienceReader(directory) as reader:
        return list(reader.rows())


def test_a_decision_and_its_result_come_back_as_they_went(tmp_path):
    with ExperienceStore(tmp_path) as store:
        record = _record(store.next_id())
        store.decided(record)
        store.bound(record.id, "node-2", 5.0, Choice(2, 0.25))
        result = replace(
            RESULT, node=store.key.name("node-2"), action=2, propensity=0.25, bound_at=5.0, started_at=6.0,
            ready_at=7.0, ended_at=8.0, watts=120.0, slowdown=1.2, sla_met=True, reason="why",
        )  # fmt: skip
        store.closed(record.id, result, final=True)
        assert store.flush(10)
        (row,) = _rows(tmp_path)
        names = tuple(store.key.name(name) for name in record.seen.names)
    assert row.result == result
    assert (row.closed, row.final) == (1, True)
    for name in ("node", "pair", "task", "ctx", "mask", "logits", "propensity"):
        np.testing.assert_array_equal(getattr(row.decision.seen, name), getattr(record.seen, name))
    assert row.decision.seen.names == names
    np.testing.assert_array_equal(row.decision.pod, record.pod)
    plain = {"seen": None, "pod": None}
    assert replace(row.decision, **plain) == replace(record, **plain)


def test_no_name_is_on_disk_in_the_clear(tmp_path):
    with ExperienceStore(tmp_path) as store:
        store.decided(replace(_record(store.next_id()), tenant=store.key.name("secret-team")))
        store.bound(1, "node-2", 5.0, Choice(2))
        assert store.flush(10)
        files = b"".join(path.read_bytes() for path in tmp_path.glob(f"{NAME}*"))
    assert b"secret-team" not in files
    assert b"node-" not in files


def test_the_store_is_its_owners_alone(tmp_path):
    with ExperienceStore(tmp_path) as store:
        store.decided(_record(store.next_id()))
        assert store.flush(10)
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert {NAME, f"{NAME}-wal", f"{NAME}-shm", "local.key"} <= set(modes)
    assert set(modes.values()) == {0o600}


def test_the_oldest_goes_first_and_a_tenant_displaces_its_own(tmp_path):
    with ExperienceStore(tmp_path, StoreConfig(capacity=10, tenant_cap=4)) as store:
        for tenant, count in (("loud", 20), ("quiet", 3)):
            for _ in range(count):
                store.decided(_record(store.next_id(), tenant))
        assert store.flush(10)
        kept = [(row.decision.tenant, row.decision.id) for row in _rows(tmp_path)]
        assert kept == [("loud", n) for n in range(17, 21)] + [("quiet", n) for n in range(21, 24)]
        for number in range(8):
            store.decided(_record(store.next_id(), f"other-{number}"))
        store.closed(1, RESULT, final=True)  # of a decision that has gone
        assert store.flush(10)
        assert [row.decision.id for row in _rows(tmp_path)] == list(range(22, 32))


def test_the_bounds_hold_after_a_restart_and_places_of_closing_never_come_twice(tmp_path):
    config = StoreConfig(capacity=3, tenant_cap=2)
    for first in (1, 4):
        with ExperienceStore(tmp_path, config) as store:
            for _ in range(3):
                number = store.next_id()
                store.decided(_record(number, "t"))
                store.closed(number, RESULT, final=True)
        rows = _rows(tmp_path)
        assert [row.decision.id for row in rows] == [first + 1, first + 2]
        assert [row.closed for row in rows] == [first + 1, first + 2]


def test_the_file_does_not_grow_once_the_store_is_full(tmp_path):
    with ExperienceStore(tmp_path, StoreConfig(capacity=200, tenant_cap=200)) as store:
        sizes = []
        for _ in range(4):
            for _ in range(400):
                store.decided(_record(store.next_id()))
            assert store.flush(30)
            sizes.append(sum(path.stat().st_size for path in tmp_path.glob(f"{NAME}")))
    assert max(sizes[1:]) <= 1.2 * sizes[0]


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_store import RESULT, _record
from shoal_client.experience.store import Choice, ExperienceStore
store = ExperienceStore(Path(sys.argv[1]))
store.start()
while True:
    for _ in range(5):
        number = store.next_id()
        store.decided(_record(number))
        store.bound(number, "node-1", 1.0, Choice(1, 0.5))
        store.closed(number, RESULT, final=True)
    assert store.flush(30)
    print(number, flush=True)
"""


@pytest.mark.parametrize("acknowledged", [1, 7, 23])
def test_nothing_acknowledged_is_lost_when_the_process_is_killed(tmp_path, acknowledged):
    here = os.path.dirname(__file__)
    process = subprocess.Popen([sys.executable, "-c", WRITER, tmp_path, here], stdout=subprocess.PIPE)
    last = 0
    for _ in range(acknowledged):
        last = int(process.stdout.readline())
    os.kill(process.pid, signal.SIGKILL)  # in the middle of what comes next
    rest = process.stdout.read().split()
    process.wait()
    process.stdout.close()
    last = max([last, *map(int, rest)])
    with ExperienceStore(tmp_path) as store:  # recovers by itself and goes on
        number = store.next_id()
        store.decided(_record(number))
        assert store.flush(10)
    rows = _rows(tmp_path)
    assert [row.decision.id for row in rows] == list(range(1, number + 1))
    assert last >= 5 * acknowledged
    assert all(row.final for row in rows[:last])
    assert all(row.result.reward == RESULT.reward for row in rows[:last])
    for row in rows:
        np.testing.assert_array_equal(row.decision.seen.node, _seen(seed=row.decision.id).node)


def test_a_disk_that_refuses_is_tried_again_and_nothing_is_lost(tmp_path):
    with ExperienceStore(tmp_path) as store:
        store.decided(_record(store.next_id()))
        assert store.flush(10)
        other = sqlite3.connect(store.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")  # nobody else may write
        store.decided(_record(store.next_id()))
        assert not store.flush(0.2)
        other.execute("ROLLBACK")
        other.close()
        assert store.flush(20)
    assert len(_rows(tmp_path)) == 2


def test_what_is_wrong_with_one_decision_does_not_hold_up_the_others(tmp_path):
    with ExperienceStore(tmp_path) as store:
        store.decided(_record(1))
        store.decided(_record(1))
        store.decided(_record(2))
        assert store.flush(10)
    assert [row.decision.id for row in _rows(tmp_path)] == [1, 2]


def test_two_processes_cannot_write_one_store(tmp_path):
    with ExperienceStore(tmp_path), pytest.raises(InputError, match="another process writes it"):
        ExperienceStore(tmp_path)


def test_a_directory_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("words")
    with pytest.raises(InputError, match="file: store: File exists; give a directory that can be written"):
        ExperienceStore(tmp_path / "file")


def test_a_damaged_store_is_set_aside_and_a_new_one_begun(tmp_path):
    with ExperienceStore(tmp_path) as store:
        for _ in range(50):
            store.decided(_record(store.next_id()))
    whole = bytearray((tmp_path / NAME).read_bytes())
    whole[4_096:20_000] = os.urandom(20_000 - 4_096)
    (tmp_path / NAME).write_bytes(whole)
    with ExperienceStore(tmp_path) as store:
        store.decided(_record(store.next_id()))
    assert len(_rows(tmp_path)) == 1
    assert (tmp_path / f"{NAME}.damaged").read_bytes() == bytes(whole)


def test_a_store_of_another_feature_table_is_set_aside(tmp_path):
    with ExperienceStore(tmp_path) as store:
        store.decided(_record(store.next_id()))
    with sqlite3.connect(tmp_path / NAME) as other:
        other.execute("UPDATE meta SET value = 'older' WHERE name = 'schema'")
    other.close()
    with pytest.raises(SchemaMismatch, match="another feature table"):
        ExperienceReader(tmp_path)
    with ExperienceStore(tmp_path):
        assert len(_rows(tmp_path)) == 0
    assert (tmp_path / f"{NAME}.other-schema").exists()


def test_reading_what_is_not_there_names_the_remedy(tmp_path):
    with pytest.raises(InputError, match="give the directory that the client writes"):
        ExperienceReader(tmp_path)
    (tmp_path / NAME).write_bytes(b"no database, but long enough to be looked at as one" * 100)
    with pytest.raises(InputError, match="restore it"):
        ExperienceReader(tmp_path)


def test_the_key_is_the_owners_alone(tmp_path):
    key = LocalKey(tmp_path / "local.key")
    assert stat.S_IMODE((tmp_path / "local.key").stat().st_mode) == 0o600
    assert LocalKey(tmp_path / "local.key").name("team-a") == key.name("team-a") != key.name("team-b")
    assert LocalKey(tmp_path / "other.key").name("team-a") != key.name("team-a")
    (tmp_path / "local.key").chmod(0o640)
    with pytest.raises(InputError, match="chmod 600"):
        LocalKey(tmp_path / "local.key")
    (tmp_path / "short.key").write_bytes(b"x")
    (tmp_path / "short.key").chmod(0o600)
    with pytest.raises(InputError, match="has 1 bytes"):
        LocalKey(tmp_path / "short.key")
