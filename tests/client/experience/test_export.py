# SPDX-License-Identifier: Apache-2.0
"""The Parquet file and the command that writes it."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from shoal_client.commands.client import app
from shoal_client.experience.export import export
from shoal_client.experience.source import transitions
from shoal_common.errors import InputError
from shoal_common.observation import FN, schema_hash


@pytest.fixture
def filled(world, new_pod):
    """One closed decision, one watched, one open, and an attempt that was refused."""
    for uid in ("a", "b", "c"):
        pending = new_pod(uid, namespace="team-x")
        world.change(None, pending)
        if uid != "b":
            world.decided(pending, chosen=1)
        if uid != "c":
            world.bind(pending, "node-1")
    world.attempts.refused(new_pod("d"), "deadline", "extender", "active", "digest", world.now)
    world.at(301)
    assert world.store.flush(10)
    return world


def test_a_row_a_decision_with_hashed_names(filled, tmp_path):
    out = tmp_path / "x.parquet"
    done = export(filled.store.path.parent, out, candidates=True)
    assert (done.rows, done.closed, done.learnable) == (4, 3, 2)
    table = pq.read_table(out)
    rows = table.to_pylist()
    assert [row["outcome"] for row in rows] == ["running", "running", None, "refused"]
    assert [row["reason"] for row in rows] == ["", "", "", "deadline"]
    assert rows[0]["tenant"] == filled.store.key.name("team-x")
    assert rows[0]["node"] == filled.store.key.name("node-1") == rows[0]["names"][1]
    assert rows[0]["propensity"] == pytest.approx(0.25)
    assert rows[1]["propensity"] is None
    assert rows[2]["reward_util"] is None
    assert len(rows[0]["node_features"]) == 4 * FN
    assert rows[3]["node_features"] is None
    about = json.loads(table.schema.metadata[b"shoal"])
    assert about["schema_hash"] == schema_hash()
    assert about["node_features"][0] == "cpu_free"
    log = transitions(filled.rows()[:1])
    assert rows[0]["reward_util"] == log.reward[0, 0]
    assert b"team-x" not in out.read_bytes()


def test_the_command(filled, tmp_path):
    out, store = tmp_path / "x.parquet", str(filled.store.path.parent)
    run = CliRunner().invoke(app, ["export", "--store", store, "--out", str(out), "--json"])
    assert (run.exit_code, json.loads(run.stdout)["rows"]) == (0, 4)
    late = ["--since", "2200-01-01T00:00:00Z"]
    run = CliRunner().invoke(app, ["export", "--store", store, "--out", str(out), *late])
    assert "0 decisions" in run.stdout
    assert pq.read_table(out).num_rows == 0


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--since", "yesterday"], "no time with a zone"),
        (["--since", "2026-01-31T12:00:00"], "no time with a zone"),
        (["--since", "2026-01-02T00:00:00Z", "--until", "2026-01-01T00:00:00Z"], "not after --since"),
    ],
)
def test_wrong_times_get_one_line(filled, tmp_path, options, problem):
    arguments = ["export", "--store", str(filled.store.path.parent), "--out", str(tmp_path / "x"), *options]
    run = CliRunner().invoke(app, arguments)
    assert isinstance(run.exception, InputError)
    assert problem in str(run.exception)


def test_nothing_half_written_is_left(tmp_path, filled):
    with pytest.raises(InputError, match="no such file"):
        export(tmp_path / "nowhere", tmp_path / "x.parquet")
    with pytest.raises(InputError, match="--out"):
        export(filled.store.path.parent, tmp_path / "no-folder" / "x.parquet")
    assert not list(tmp_path.glob("*.part*"))
    assert not (tmp_path / "x.parquet").exists()
