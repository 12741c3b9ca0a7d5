# SPDX-License-Identifier: Apache-2.0
"""A new artifact takes over, a broken one never does."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from shoal_client.serve.artifact_file import ArtifactFile
from shoal_common.errors import Fatal, InputError
from shoal_common.scorers.artifact import HEAD, MANIFEST, WEIGHTS, ArtifactScorer, digest
from shoal_common.scorers.base import Scores

from .conftest import World, save_artifact, some_nodes


def test_a_new_artifact_takes_over_at_the_next_decision(artifact: Path, tmp_path: Path) -> None:
    link = tmp_path / "current"
    link.symlink_to(artifact)
    world = World(link).nodes(*some_nodes())
    first = world.decider.digest
    assert not world.artifact.look()
    world.scores(world.asked())
    other = save_artifact(tmp_path / "other", 2)
    (tmp_path / "next").symlink_to(other)
    os.replace(tmp_path / "next", link)
    assert world.artifact.look()
    world.scores(world.asked(name="q"))
    digests = [more["policy"] for _, more in world.recorded.decisions]
    assert digests == [first, world.decider.digest]
    assert first != world.decider.digest
    world.service.stop()


def test_a_broken_artifact_leaves_the_old_one_and_a_mended_one_comes(artifact: Path, tmp_path: Path) -> None:
    folder = tmp_path / "artifact"
    shutil.copytree(artifact, folder)
    file = ArtifactFile(folder)
    kept = file.current
    weights = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(weights[:-1] + b"\0")
    (folder / MANIFEST).write_text((folder / MANIFEST).read_text() + " ")
    assert not file.look()
    assert file.current is kept
    assert "a byte of the artifact changed" in file.problem
    (folder / MANIFEST).unlink()
    assert not file.look()
    assert file.current is kept
    shutil.copytree(artifact, folder, dirs_exist_ok=True)
    assert file.look()
    assert (file.problem, file.current is kept) == ("", False)


def test_the_first_artifact_must_verify_and_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"manifest\.json: is missing"):
        ArtifactFile(tmp_path)
    assert ArtifactFile(None).current is None
    folder = save_artifact(tmp_path / "artifact", 3)

    def broken(self: ArtifactScorer, tokens: object, obs: object) -> Scores:
        return Scores(np.full((1, 3, 1), np.nan, np.float32), np.ones((1, 3, 1, 2), np.float32))

    monkeypatch.setattr(ArtifactScorer, "score_tokens", broken)
    with pytest.raises(Fatal, match="gives no finite score"):
        ArtifactFile(folder)


@pytest.mark.parametrize("what", ["graph", "profiles"])
def test_a_sealed_artifact_that_cannot_be_run_is_refused_and_looked_at_again(
    artifact: Path, tmp_path: Path, what: str
) -> None:
    folder = tmp_path / "artifact"
    shutil.copytree(artifact, folder)
    file = ArtifactFile(folder)
    kept, manifest = file.current, json.loads((folder / MANIFEST).read_text())
    if what == "graph":
        (folder / HEAD).write_bytes(b"no graph")
    else:
        del manifest["profiles"]
    manifest["digest"] = digest(folder, manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest) + " ")
    assert not file.look()
    assert file.current is kept
    assert "cannot be run" in file.problem
    with pytest.raises(InputError, match="cannot be run"):
        ArtifactFile(folder)
    shutil.copytree(artifact, folder, dirs_exist_ok=True)
    assert file.look()
