# SPDX-License-Identifier: Apache-2.0
"""Resizes by hand: what is touched, what is kept, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from shoal_client.actuate.quotas import (
    NamespaceLimits,
    QuotaBounds,
    Refusal,
    Resize,
    headroom,
    resize,
)

BOUNDS = QuotaBounds(
    low={"cpu": 0.5, "memory": 0.5}, high={"cpu": 2.0, "memory": 2.0}, usage_margin={"cpu": 0.2}
)
IDLE: dict[str, float | None] = {"cpu": 0.0, "memory": 0.0}


def pod(*resources: dict[str, Any], **spec: Any) -> dict[str, Any]:
    containers = [{"name": f"c{i}", "resources": r} for i, r in enumerate(resources)]
    return {"metadata": {"name": "p"}, "spec": {"containers": containers, **spec}}


def sides(
    cpu: str, memory: str, limit_cpu: str | None = None, limit_memory: str | None = None
) -> dict[str, Any]:
    limits = {k: v for k, v in (("cpu", limit_cpu), ("memory", limit_memory)) if v}
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": limits}


def written(result: Resize | Refusal) -> list[Any]:
    assert isinstance(result, Resize), result
    return [c["resources"] for c in result.containers]


def test_requests_only_where_there_are_no_limits() -> None:
    result = resize(pod(sides("1", "1Gi")), {"cpu": 0.6}, BOUNDS, IDLE)
    assert written(result) == [{"requests": {"cpu": "600m"}}]


def test_limits_follow_their_request() -> None:
    result = resize(pod(sides("1", "1Gi", "2")), {"cpu": 1.5}, BOUNDS, IDLE)
    assert written(result) == [{"requests": {"cpu": "1500m"}, "limits": {"cpu": "3000m"}}]


def test_a_guaranteed_pod_stays_guaranteed() -> None:
    result = resize(pod(sides("3", "1Gi", "3", "1Gi")), {"cpu": 0.7, "memory": 0.7}, BOUNDS, IDLE)
    (resources,) = written(result)
    assert resources["requests"] == resources["limits"] == {"cpu": "2100m", "memory": "751619277"}


def test_factors_are_held_within_the_bounds() -> None:
    assert written(resize(pod(sides("1", "1Gi")), {"cpu": 9.0}, BOUNDS, IDLE)) == [
        {"requests": {"cpu": "2000m"}}
    ]
    assert written(resize(pod(sides("1", "1Gi")), {"cpu": 0.0}, BOUNDS, IDLE)) == [
        {"requests": {"cpu": "500m"}}
    ]


def test_what_the_policy_may_not_touch_is_not_touched() -> None:
    only_cpu = QuotaBounds(low={"cpu": 0.5}, high={"cpu": 2.0})
    result = resize(pod(sides("1", "1Gi")), {"cpu": 0.5, "memory": 0.5}, only_cpu, IDLE)
    assert written(result) == [{"requests": {"cpu": "500m"}}]


def test_never_below_the_known_use_and_its_margin() -> None:
    """Two containers ask for 2 cores, 1 core is used: 1.2 of 2 is the least, shared alike."""
    result = resize(pod(sides("1", "1Gi"), sides("1", "1Gi")), {"cpu": 0.5}, BOUNDS, {"cpu": 1.0})
    assert written(result) == [{"requests": {"cpu": "600m"}}, {"requests": {"cpu": "600m"}}]


@pytest.mark.parametrize("used", [{"cpu": None}, {}, {"cpu": float("nan")}])
def test_of_unknown_use_nothing_is_taken(used: dict[str, float | None]) -> None:
    assert resize(pod(sides("1", "1Gi")), {"cpu": 0.5}, BOUNDS, used) == Resize()


def test_a_factor_that_is_no_number_changes_nothing() -> None:
    assert resize(pod(sides("1", "1Gi")), {"cpu": float("nan")}, BOUNDS, IDLE) == Resize()


def test_containers_without_requests_and_small_ones_are_left_alone() -> None:
    result = resize(pod({}, sides("5m", "1Gi"), sides("12m", "1Gi")), {"cpu": 0.5}, BOUNDS, IDLE)
    assert written(result) == [{"requests": {"cpu": "10m"}}]


def test_case_38_only_what_a_resize_may_do() -> None:
    """The QoS class is kept, no limit is added, what cannot be resized is told before a call is made."""
    nearly = {"requests": {"memory": "33554433"}, "limits": {"memory": "33554434"}}
    (cut,) = written(resize(pod(nearly), {"memory": 0.5}, BOUNDS, IDLE))
    assert cut == {"requests": {"memory": "16777217"}, "limits": {"memory": "16777218"}}  # still Burstable
    whole = pod(sides("1", "1Gi"), resources={"requests": {"cpu": "1"}})
    static = {**pod(sides("1", "1Gi")), "metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}}
    windows = pod(sides("1", "1Gi"), os={"name": "windows"})
    for unfit in (whole, static, windows):
        refused = resize(unfit, {"cpu": 0.5}, BOUNDS, IDLE)
        assert isinstance(refused, Refusal)
        assert refused.reason == "unsupported"
    no_limits = resize(pod(sides("1", "1Gi")), {"cpu": 0.5, "memory": 0.5}, BOUNDS, IDLE)
    assert all("limits" not in r for r in written(no_limits))


def test_limit_ranges_hold() -> None:
    container = {"type": "Container", "min": {"cpu": "800m"}, "max": {"memory": "1500Mi"}}
    limits = NamespaceLimits(limit_ranges=(container,))
    for factors in ({"cpu": 0.5}, {"memory": 1.6}):
        refused = resize(pod(sides("1", "1Gi")), factors, BOUNDS, IDLE, limits)
        assert isinstance(refused, Refusal)
        assert refused.reason == "limit_range"
    whole = NamespaceLimits(limit_ranges=({"type": "Pod", "max": {"cpu": "3"}},))
    assert isinstance(
        resize(pod(sides("1", "1Gi"), sides("1", "1Gi")), {"cpu": 2.0}, BOUNDS, IDLE, whole), Refusal
    )
    ratio = NamespaceLimits(limit_ranges=({"type": "Container", "maxLimitRequestRatio": {"cpu": "2"}},))
    assert isinstance(resize(pod(sides("1", "1Gi", "2")), {"cpu": 0.5}, BOUNDS, IDLE, ratio), Resize)


def test_growth_needs_room_in_the_namespaces_quota_and_shrinking_does_not() -> None:
    quota = {"spec": {}, "status": {"hard": {"requests.cpu": "4"}, "used": {"requests.cpu": "3500m"}}}
    limits = NamespaceLimits(headroom=headroom([quota]))
    assert limits.headroom[0]["requests.cpu"] * 2 == 1
    assert isinstance(resize(pod(sides("1", "1Gi")), {"cpu": 1.5}, BOUNDS, IDLE, limits), Resize)
    refused = resize(pod(sides("1", "1Gi")), {"cpu": 1.6}, BOUNDS, IDLE, limits)
    assert isinstance(refused, Refusal)
    assert refused.reason == "quota"
    over = NamespaceLimits(
        headroom=headroom([{"spec": {}, "status": {"hard": {"cpu": "1"}, "used": {"cpu": "3"}}}])
    )
    assert isinstance(resize(pod(sides("1", "1Gi")), {"cpu": 0.5}, BOUNDS, IDLE, over), Resize)
