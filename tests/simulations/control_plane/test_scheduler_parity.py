# SPDX-License-Identifier: Apache-2.0
"""The virtual scheduler places pods where kube-scheduler v1.36.2 did, and asks the extender the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import recorded_placements as recorded

from shoal_simulations.control_plane import ApiServer, Attempt, Configuration, Scheduler


def test_placements_and_requests_are_those_of_a_real_scheduler() -> None:
    """The state before each pod is the real one: ties are broken at random, and would lead apart."""
    real = json.loads(recorded.RECORDED.read_text())
    ties, elsewhere = [], {}
    with ApiServer() as api, recorded.extender() as (url, calls):
        for made in recorded.nodes():
            api.create("nodes", made)
        with Scheduler(api.url, Configuration((recorded.stanza(url),))) as scheduler:
            for made in recorded.pods():
                name, node = made["metadata"]["name"], real["placed"][made["metadata"]["name"]]
                attempt = place(api, scheduler, made)
                if attempt.node != node:
                    tied = node and attempt.totals.get(node) == max(attempt.totals.values())
                    ties += [name] if tied else []
                    elsewhere |= {} if tied else {name: (attempt.node, node)}
                api.delete("pods", name, grace=0)
                if node:
                    made["spec"]["nodeName"] = node
                    uid = api.create("pods", made)["metadata"]["uid"]
                    assert api.wait(lambda uid=uid: uid in scheduler.bound)
    assert elsewhere == {}
    assert len(ties) < len(real["placed"]) / 10
    assert [list(call) for call in calls] == real["calls"]


def place(api: ApiServer, scheduler: Scheduler, made: dict[str, object]) -> Attempt:
    """How the scheduler places a pod; returns once the API shows it."""
    uid, name = api.create("pods", made)["metadata"]["uid"], made["metadata"]["name"]
    assert api.wait(lambda: any(a.uid == uid for a in scheduler.attempts))
    attempt = next(a for a in scheduler.attempts if a.uid == uid)
    if attempt.node:
        assert api.wait(lambda: api.get("pods", name)["spec"].get("nodeName") == attempt.node)
    return attempt
