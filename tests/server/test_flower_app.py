# SPDX-License-Identifier: Apache-2.0
"""The thin Flower app folder: valid for Flower, and its keys are the settings'."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path

from flwr.common.config import validate_config

from shoal_server.settings import Settings

FOLDER = Path(__file__).parents[2] / "deploy" / "flower"
CLIENT_KEYS = {"initial", "trainer", "state-dir"}


def test_flower_finds_it_valid_with_its_references():
    config = tomllib.loads((FOLDER / "pyproject.toml").read_text())
    assert validate_config(config, check_module=True, project_dir=FOLDER) == (True, [], [])


def test_every_setting_can_be_overridden_and_nothing_else():
    config = tomllib.loads((FOLDER / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    settings = {field.name.replace("_", "-") for field in fields(Settings)}
    assert config.keys() == settings | CLIENT_KEYS
    Settings.parse(config)
