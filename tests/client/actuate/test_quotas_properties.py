# SPDX-License-Identifier: Apache-2.0
"""Whatever is asked for, a resize keeps what the API server and the policy demand."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_client.actuate.quotas import SMALLEST, QuotaBounds, Resize, resize
from shoal_common.fields import Field
from shoal_common.manifests import read_pod
from shoal_common.quantity import parse_quantity

AMOUNTS = {"cpu": st.integers(1, 64_000).map(lambda n: f"{n}m"), "memory": st.integers(1, 2**38).map(str)}


@st.composite
def containers(draw: st.DrawFn) -> dict[str, Any]:
    requests, limits = {}, {}
    for resource, amounts in AMOUNTS.items():
        if draw(st.booleans()):
            requests[resource] = draw(amounts)
            more = draw(st.sampled_from((None, 1, 1, 2, 3)))
            if more:
                limit = parse_quantity(requests[resource]) * more
                limits[resource] = f"{int(limit * 1000)}m" if resource == "cpu" else str(int(limit))
    return {"resources": {"requests": requests, "limits": limits}}


def applied(pod: dict[str, Any], result: Resize) -> dict[str, Any]:
    by_name = {c["name"]: c["resources"] for c in result.containers}
    after = []
    for c in pod["spec"]["containers"]:
        change = by_name.get(c["name"], {})
        both = {side: {**c["resources"][side], **change.get(side, {})} for side in ("requests", "limits")}
        after.append({**c, "resources": both})
    return {**pod, "spec": {"containers": after}}


FACTORS = st.floats(allow_nan=True, allow_infinity=True)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(
    st.lists(containers(), min_size=1, max_size=4), FACTORS, FACTORS, st.floats(0.1, 1.0), st.floats(1.0, 4.0)
)
def test_a_resize_is_one_that_the_api_server_takes(
    drawn: list[dict[str, Any]], cpu: float, memory: float, low: float, high: float
) -> None:
    pod = {
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": f"c{i}", **c} for i, c in enumerate(drawn)]},
    }
    bounds = QuotaBounds({"cpu": low, "memory": low}, {"cpu": high, "memory": high})
    result = resize(pod, {"cpu": cpu, "memory": memory}, bounds, {"cpu": 0.0, "memory": 0.0})
    if not isinstance(result, Resize):
        return
    after = applied(pod, result)
    assert read_pod(Field("t", "", after)).qos == read_pod(Field("t", "", pod)).qos
    for old, new in zip(pod["spec"]["containers"], after["spec"]["containers"], strict=True):
        for side in ("requests", "limits"):
            assert old["resources"][side].keys() == new["resources"][side].keys()
        for resource, text in new["resources"]["requests"].items():
            before, now = parse_quantity(old["resources"]["requests"][resource]), parse_quantity(text)
            limit = new["resources"]["limits"].get(resource)
            assert limit is None or now <= parse_quantity(limit)
            least = min(before, max(before * (Fraction(low) - Fraction(1, 1000)), Fraction(0)))
            assert least <= now
            assert now <= max(before * (Fraction(high) + Fraction(1, 1000)) + 1, SMALLEST[resource])


@settings(deadline=None, derandomize=True, max_examples=100)
@given(
    st.lists(containers(), min_size=1, max_size=3),
    st.floats(0.1, 1.0),
    st.floats(0, 100),
    st.floats(0, 2.0**39),
)
def test_never_below_what_is_used(
    drawn: list[dict[str, Any]], factor: float, cpu: float, memory: float
) -> None:
    pod = {
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": f"c{i}", **c} for i, c in enumerate(drawn)]},
    }
    bounds = QuotaBounds(
        {"cpu": 0.1, "memory": 0.1}, {"cpu": 1.0, "memory": 1.0}, usage_margin={"cpu": 0.2, "memory": 0.2}
    )
    used = {"cpu": cpu, "memory": memory}
    result = resize(pod, {"cpu": factor, "memory": factor}, bounds, dict(used))
    if not isinstance(result, Resize):
        return
    for resource, use in used.items():
        old, new = (
            sum(parse_quantity(c["resources"]["requests"].get(resource, 0)) for c in p["spec"]["containers"])
            for p in (pod, applied(pod, result))
        )
        assert new >= min(old, Fraction(use) * Fraction(12, 10)) - Fraction(1, 10**6)
