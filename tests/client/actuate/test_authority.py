# SPDX-License-Identifier: Apache-2.0
"""Nothing may be done without a policy that serves the pod and switches the action on."""

from __future__ import annotations

from typing import Any

import pytest

from shoal_client.actuate.authority import Authority
from shoal_client.policies.registry import Policies
from shoal_common.pods import PodRecord

QUOTA = {"cpuQuota": {"enabled": True}}
POD = PodRecord("p", uid="u", labels={"app": "a"})


def under(*specs: dict[str, Any]) -> Authority:
    policies = Policies()
    for number, spec in enumerate(specs):
        policies.set({"metadata": {"name": f"p{number}", "uid": str(number), "generation": 1}, "spec": spec})
    policies.mark_synced()
    return Authority(policies, lambda namespace: {})


@pytest.mark.parametrize(
    ("spec", "allowed"),
    [
        ({"mode": "Active", "actions": QUOTA}, True),
        ({"mode": "Canary", "canaryPercent": 100, "actions": QUOTA}, True),
        ({"mode": "Canary", "canaryPercent": 0, "actions": QUOTA}, False),
        ({"mode": "Shadow", "actions": QUOTA}, False),
        ({"mode": "Off", "actions": QUOTA}, False),
        ({"mode": "Active"}, False),
        (
            {"mode": "Active", "actions": QUOTA, "selector": {"podSelector": {"matchLabels": {"app": "b"}}}},
            False,
        ),
    ],
)
def test_who_is_placed(spec: dict[str, Any], allowed: bool) -> None:
    assert under(spec).places(POD) is allowed


def test_nothing_without_policies_or_before_they_are_read() -> None:
    assert under().actions(POD) is None
    unread = Policies()
    unread.set(
        {"metadata": {"name": "p", "uid": "1", "generation": 1}, "spec": {"mode": "Active", "actions": QUOTA}}
    )
    assert Authority(unread, lambda namespace: {}).actions(POD) is None


@pytest.mark.parametrize(("mode", "enabled"), [("Active", True), ("Shadow", False), ("Off", False)])
def test_whether_any_policy_switches_an_action_on(mode: str, enabled: bool) -> None:
    authority = under({"mode": "Active"}, {"mode": mode, "actions": {"routes": {"enabled": True}}})
    assert authority.enabled(lambda actions: actions.routes.enabled) is enabled
    assert not authority.enabled(lambda actions: actions.migration.enabled)
