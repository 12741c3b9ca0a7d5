# SPDX-License-Identifier: Apache-2.0
"""Whatever order events arrive in, the policies in force are those of the last version of each object."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_client.policies.registry import Policies, in_canary
from shoal_client.policies.spec import Mode, SchedulingPolicySpec, read_spec
from shoal_common.errors import InputError
from shoal_common.pods import PodRecord

NAMES = ("a", "b", "c")
PODS = [PodRecord(f"p{i}", uid=str(i), labels={"app": app}) for i, app in enumerate(("x", "y", "z"))]
selectors = st.sampled_from([None, {"matchLabels": {"app": "x"}}, {"matchLabels": {"app": "y"}}])
specs = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["Off", "Shadow", "Active", "Wrong"]),
        "priority": st.integers(-1, 1),
        "selector": selectors.map(lambda s: {} if s is None else {"podSelector": s}),
    }
)
events = st.lists(st.tuples(st.sampled_from(NAMES), st.one_of(st.none(), specs)), max_size=12)


def obj(name: str, spec: dict[str, Any], version: int) -> dict[str, Any]:
    metadata = {"name": name, "uid": name, "generation": version, "resourceVersion": str(version)}
    return {"metadata": metadata | {"creationTimestamp": f"2026-01-0{1 + NAMES.index(name)}"}, "spec": spec}


def expected(objects: dict[str, dict[str, Any]], pod: PodRecord) -> tuple[str, Mode] | None:
    """The rule as the page says it, without any of the registry."""
    best = None
    for name, content in objects.items():
        try:
            spec = read_spec(SchedulingPolicySpec, "SchedulingPolicy", content)
        except InputError:
            continue
        wanted = (content["spec"]["selector"].get("podSelector") or {}).get("matchLabels", {})
        if all(pod.labels.get(key) == value for key, value in wanted.items()):
            rank = (-spec.priority, content["metadata"]["creationTimestamp"], name)
            best = min(best or (rank, spec.mode), (rank, spec.mode), key=lambda found: found[0])
    return None if best is None else (best[0][2], best[1])


@given(events)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_the_last_version_of_each_object_holds(sequence: list[tuple[str, dict[str, Any] | None]]) -> None:
    policies, known = Policies(), {}
    policies.mark_synced()
    for version, (name, spec) in enumerate(sequence, start=1):
        if spec is None:
            policies.delete(name)
            known.pop(name, None)
            continue
        late = known.get(name)
        known[name] = obj(name, spec, version)
        policies.set(known[name])
        if late is not None:
            policies.set(late)  # a list that was read earlier arrives later
    for pod in PODS:
        applied = policies.for_pod(pod, {})
        if not known:
            assert applied is not None
            assert (applied.name, applied.mode) == ("", Mode.SHADOW)
        else:
            assert (applied and (applied.name, applied.mode)) == expected(known, pod)


@given(st.text(min_size=1, max_size=40), st.floats(0, 100), st.floats(0, 100))
@settings(deadline=None, derandomize=True, max_examples=60)
def test_a_growing_canary_lets_nobody_go(owner: str, one: float, other: float) -> None:
    low, high = sorted((one, other))
    pod = PodRecord("p", uid="u", owner_uid=owner)
    assert in_canary(pod, high) or not in_canary(pod, low)
