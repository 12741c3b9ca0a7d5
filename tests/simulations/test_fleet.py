# SPDX-License-Identifier: Apache-2.0
"""The fleet file: embedded fleets, conversion to scenarios, and one line for everything that is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shoal_common.cluster import N_CPU, N_GPUS
from shoal_common.errors import InputError
from shoal_common.twin.scenarios import embedded_fleet
from shoal_simulations.fleet import Learning, embedded, load_fleet, with_overrides
from shoal_simulations.virtual import Run

GOOD = """
[fleet]
name = "toy"

[[clusters]]
name = "one"
nodes = [{ class = "old-cpu", count = 2 }, { class = "gpu", count = 1 }]
mix = { service = 0.4, compute = 0.25, io = 0.25, gpu = 0.1 }
load = 0.5

[privacy]
noise_multiplier = 2.0
"""


@pytest.fixture
def fleet_file(tmp_path: Path) -> Path:
    path = tmp_path / "toy.toml"
    path.write_text(GOOD)
    return path


def test_the_default_is_the_embedded_fleet_of_the_twin() -> None:
    assert load_fleet("default").scenarios() == embedded_fleet()


@pytest.mark.parametrize("name", embedded())
def test_embedded_fleets_load_and_have_a_sound_privacy_plan(name: str) -> None:
    fleet = load_fleet(name)
    privacy = Run(fleet, 0).privacy()
    assert privacy is None or privacy.planned_epsilon <= 3


def test_a_file_becomes_scenarios(fleet_file: Path) -> None:
    fleet = load_fleet(str(fleet_file))
    (scenario,) = fleet.scenarios()
    assert scenario.node_rows[:, N_CPU].tolist() == [16_000, 16_000, 24_000]
    assert scenario.node_rows[:, N_GPUS].tolist() == [0, 0, 4]
    assert scenario.workload.mix == (0.4, 0.25, 0.25, 0.1)
    assert (scenario.workload.load, scenario.seconds) == (0.5, 7_200.0)


def test_scale_multiplies_counts_and_keeps_every_group(fleet_file: Path) -> None:
    fleet_file.write_text(GOOD.replace("load = 0.5", "scale = 1.5"))
    (scenario,) = load_fleet(str(fleet_file)).scenarios()
    assert [count for _, count in scenario.nodes] == [3, 2]
    fleet_file.write_text(GOOD.replace("load = 0.5", "scale = 0.01"))
    (scenario,) = load_fleet(str(fleet_file)).scenarios()
    assert [count for _, count in scenario.nodes] == [1, 1]


def test_own_classes_stand_beside_the_built_in_ones(fleet_file: Path) -> None:
    own = "\n[classes.tiny]\ncores = 4\nmemory_gib = 8\n"
    fleet_file.write_text(GOOD.replace('class = "gpu"', 'class = "tiny"') + own)
    (scenario,) = load_fleet(str(fleet_file)).scenarios()
    assert scenario.nodes[1][0].name == "tiny"
    assert scenario.node_rows[-1, N_CPU] == 4_000


def test_overrides_and_digest() -> None:
    fleet = load_fleet("small")
    run = Run(with_overrides(fleet, 5, True), 3)
    assert run.fleet.federation.rounds == 5
    assert run.privacy() is None
    assert Run(fleet, 3).digest != run.digest != Run(run.fleet, 4).digest
    assert Run.parse(run.config) == run


NOISE = "noise_multiplier = 2.0"
WRONG = {  # what is replaced, by what: the field that the line must name, a word of the remedy
    "unknown key": ("load = 0.5", "laod = 0.5", "clusters[0].laod", "did you mean load"),
    "unknown section": ("[privacy]", "[privcy]\nx = 1\n[privacy]", "privcy", "did you mean privacy"),
    "unknown node class": ('"gpu", count', '"gpux", count', "clusters[0].nodes[1].class", "use one of"),
    "no nodes": ("nodes = [{", "nodes = []\nx = [{", "clusters[0].nodes", "at least 1"),
    "count of zero": ("count = 2", "count = 0", "clusters[0].nodes[0].count", "at least 1"),
    "count with a fraction": ("count = 2", "count = 2.5", "clusters[0].nodes[0].count", "whole number"),
    "count as text": ("count = 2", 'count = "two"', "clusters[0].nodes[0].count", "whole number"),
    "mix not a whole": ("service = 0.4", "service = 0.5", "clusters[0].mix", "make them sum to 1"),
    "missing share": (", gpu = 0.1", "", "clusters[0].mix.gpu", "add it"),
    "negative load": ("load = 0.5", "load = -1", "clusters[0].load", "above 0"),
    "load of nan": ("load = 0.5", "load = nan", "clusters[0].load", "finite"),
    "missing name": ('name = "one"', "", "clusters[0].name", "add it"),
    "bad name": ('name = "one"', 'name = "../up"', "clusters[0].name", "letters"),
    "no noise": (NOISE, "", "privacy", "give one of them"),
    "both noises": (NOISE, f"{NOISE}\ntarget_epsilon = 1", "privacy", "give one"),
    "delta too large": (NOISE, f"{NOISE}\ndelta = 0.5", "privacy", "give at most"),
    "batch above units": (NOISE, f"{NOISE}\nbatch = 50000", "privacy", "lower batch"),
    "few seeds": ("[privacy]", "[evaluation]\nseeds = 2\n[privacy]", "evaluation.seeds", "at least 8"),
    "algorithm": ("[privacy]", '[learning]\nalgorithm = "ppo"\n[privacy]', "learning.algorithm", "td3"),
    "discount of one": ("[privacy]", "[learning]\ngamma = 1.0\n[privacy]", "learning.gamma", "below 1"),
    "broken TOML": ("load = 0.5", "load = = 0.5", "TOML", "line 9"),
    "power falls": ("[privacy]", "[classes.odd]\ncores = 4\nmemory_gib = 8\nmax_watts = 5\n[privacy]",
                    "classes.odd", "raise max_watts"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_told_in_one_line(case: str, fleet_file: Path) -> None:
    old, new, field, remedy = WRONG[case]
    assert old in GOOD
    fleet_file.write_text(GOOD.replace(old, new))
    with pytest.raises(InputError) as caught:
        load_fleet(str(fleet_file))
    text = str(caught.value)
    assert text.startswith(f"{fleet_file}: {field}: ")
    assert remedy in text
    assert "\n" not in text
    assert not re.search(r"pydantic|Traceback|errors\.", text)


def test_two_clusters_of_one_name_are_refused(fleet_file: Path) -> None:
    begin, end = GOOD.index("[[clusters]]"), GOOD.index("[privacy]")
    fleet_file.write_text(GOOD[:end] + GOOD[begin:end] + GOOD[end:])
    with pytest.raises(InputError, match="two clusters are named one; give each its own name"):
        load_fleet(str(fleet_file))


def test_a_missing_file_and_an_unknown_name() -> None:
    with pytest.raises(InputError, match=r"nowhere\.toml: --fleet: no such file; name an existing TOML file"):
        load_fleet("nowhere.toml")
    with pytest.raises(InputError, match="one of article, default, small"):
        load_fleet("nowhere")


def test_quotas_reach_the_learner_and_wrong_ones_are_refused() -> None:
    small = load_fleet("small")
    learning = small.learning.model_copy(update={"quotas": (0.5, 1.0)})
    learner = Run(small.model_copy(update={"learning": learning}), 1).learner()
    assert learner.config.quota_bounds == (0.5, 1.0)
    with pytest.raises(ValueError, match="not in order"):
        Learning(quotas=(1.0, 0.5))
