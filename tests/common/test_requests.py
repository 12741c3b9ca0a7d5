# SPDX-License-Identifier: Apache-2.0
"""Effective requests and QoS classes by hand: init containers, sidecars, overhead, resizes."""

from __future__ import annotations

import pytest

from shoal_common.fields import Field
from shoal_common.manifests import read_pod
from shoal_common.pods import PodRecord

Json = dict[str, object]


def container(cpu: str | None = None, memory: str | None = None, **more: object) -> Json:
    asked = {"cpu": cpu, "memory": memory}
    requests = {name: amount for name, amount in asked.items() if amount is not None}
    return {"name": "c", "image": "i", "resources": {"requests": requests}, **more}


def sidecar(cpu: str) -> Json:
    return container(cpu, restartPolicy="Always")


def pod(*containers: Json, init: list[Json] | None = None, **spec: object) -> PodRecord:
    status = spec.pop("status", {})
    body = {"containers": list(containers), "initContainers": init or [], **spec}
    return read_pod(Field("test", "pod", {"metadata": {"name": "p"}, "spec": body, "status": status}))


def test_case_35_main_sidecar_and_overhead_add_up() -> None:
    assert pod(container("1"), init=[sidecar("1")], overhead={"cpu": "1"}).requests["cpu"] == 3000


def test_case_35_a_large_init_container_sets_the_request() -> None:
    assert pod(container("1"), init=[container("7")]).requests["cpu"] == 7000


def test_init_containers_do_not_add_to_each_other() -> None:
    assert pod(container("1"), init=[container("3"), container("2")]).requests["cpu"] == 3000


def test_case_35_a_sidecar_before_a_big_init_container_adds_to_it() -> None:
    assert pod(container("1"), init=[sidecar("2"), container("7")]).requests["cpu"] == 9000


def test_case_35_a_sidecar_after_it_does_not() -> None:
    assert pod(container("1"), init=[container("7"), sidecar("2")]).requests["cpu"] == 7000


def test_pod_level_resources_replace_the_sum_before_overhead() -> None:
    spec = {"resources": {"requests": {"cpu": "5"}}, "overhead": {"cpu": "100m"}}
    asked = pod(container("1", "1Gi"), **spec).requests
    assert asked == {"cpu": 5100, "memory": 2**30}


def test_rounding_happens_once_and_upwards() -> None:
    assert pod(container("100.1m")).requests["cpu"] == 101
    assert pod(container("100.1m"), container("100.1m")).requests["cpu"] == 201
    assert pod(container("0", "128974848000m")).requests["memory"] == 128_974_848


def test_non_zero_requests_default_what_is_missing_but_not_an_explicit_zero() -> None:
    assert pod(container()).nonzero_requests == {"cpu": 100, "memory": 200 * 2**20}
    assert pod(container("0", "0")).nonzero_requests == {"cpu": 0, "memory": 0}
    two = pod(container("1"), container(None, "1Gi"), init=[container()])
    assert two.nonzero_requests == {"cpu": 1100, "memory": 2**30 + 200 * 2**20}
    assert pod(container()).requests == {}


def resized(allocated: str, actuated: str, reason: str | None) -> PodRecord:
    condition = [{"type": "PodResizePending", "reason": reason}] if reason else []
    report = {
        "name": "c",
        "allocatedResources": {"cpu": allocated},
        "resources": {"requests": {"cpu": actuated}},
    }
    return pod(container("4"), status={"containerStatuses": [report], "conditions": condition})


@pytest.mark.parametrize(
    ("allocated", "actuated", "reason", "expected"),
    [
        ("1", "2", None, 4000),
        ("1", "6", None, 6000),
        ("5", "2", "Deferred", 5000),
        ("1", "2", "Infeasible", 2000),
        ("3", "2", "Infeasible", 3000),
    ],
)
def test_a_resize_counts_the_largest_until_it_is_infeasible(
    allocated: str, actuated: str, reason: str | None, expected: int
) -> None:
    assert resized(allocated, actuated, reason).requests["cpu"] == expected


def limited(requests: Json, limits: Json) -> Json:
    return {"name": "c", "resources": {"requests": requests, "limits": limits}}


def test_pod_level_requests_switch_the_defaults_of_a_bound_pod_off() -> None:
    # One container asks for 1 CPU, the other for none. Under pod-level memory the node counts what is there
    # (1000m); the pending pod's own score still counts 100m for the second container.
    record = pod(container("1"), container(), resources={"requests": {"memory": "1Gi"}})
    assert record.nonzero_bound_requests == {"cpu": 1000, "memory": 2**30}
    assert record.nonzero_requests == {"cpu": 1100, "memory": 2**30}
    nobody = pod(container(), container(), resources={"requests": {"memory": "1Gi"}})
    assert nobody.nonzero_bound_requests == {"cpu": 200, "memory": 2**30}
    other = pod(container("1"), container(), resources={"requests": {"example.com/foo": "1"}})
    assert other.nonzero_bound_requests == other.nonzero_requests


def test_only_containers_that_stay_are_resized() -> None:
    reported = [{"name": "c", "resources": {"requests": {"cpu": "9"}}}]
    status = {"initContainerStatuses": reported}
    main = {**container("1"), "name": "main"}
    assert pod(main, init=[container("2")], status=status).requests["cpu"] == 2000
    assert pod(main, init=[sidecar("2")], status=status).requests["cpu"] == 10_000


def test_qos_classes() -> None:
    both = {"cpu": "1", "memory": "1Gi"}
    assert pod(container()).qos == "BestEffort"
    assert pod(limited({"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "1"})).qos == "BestEffort"
    assert pod(container("1")).qos == "Burstable"
    assert pod(limited(both, both)).qos == "Guaranteed"
    assert pod(limited({}, both)).qos == "Guaranteed"
    assert pod(limited(both, {"cpu": "1", "memory": "2Gi"})).qos == "Burstable"
    assert pod(limited(both, both), container()).qos == "Burstable"
    assert pod(container("1"), resources={"requests": both, "limits": both}).qos == "Guaranteed"


def test_init_container_ports_are_free_after_it_ends_and_a_sidecars_are_not() -> None:
    ports = [{"containerPort": 80, "hostPort": 8080}]
    gone = pod(container("1"), init=[container("1", ports=ports)])
    kept = pod(container("1"), init=[container("1", ports=ports, restartPolicy="Always")])
    assert gone.host_ports == ()
    assert [port.port for port in kept.host_ports] == [8080]
