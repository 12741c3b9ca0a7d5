# SPDX-License-Identifier: Apache-2.0
"""Learners, by name. Importing this package imports no torch; `learner_class` does."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from shoal_common.errors import InputError

LEARNERS = {
    "td3": "shoal_common.learners.td3:TD3",
    "literal_td3": "shoal_common.learners.literal_td3:LiteralTD3",
    "wolpertinger": "shoal_common.learners.wolpertinger:Wolpertinger",
}


def learner_class(name: str) -> type[Any]:
    """Import the learner called `name`.

    Raises:
        InputError: there is none of that name.
    """
    if name not in LEARNERS:
        raise InputError("learner", "name", f"unknown: {name!r}", f"one of {', '.join(LEARNERS)}")
    module, attribute = LEARNERS[name].split(":")
    found: type[Any] = getattr(import_module(module), attribute)
    return found
