# SPDX-License-Identifier: Apache-2.0
"""Live features from the kubelet, its cAdvisor and kube-state-metrics: what the node's pods do and get.

kube-state-metrics must be scraped with `honor_labels: true`, as its own documentation asks: `node`,
`namespace` and `pod` are then the object's. With several replicas each series exists more than once, so the
inner `max` takes one of each.
"""

from __future__ import annotations

from typing import Final

from shoal_client.collect.node_features import one
from shoal_client.collect.queries import KUBELET, STATE, LiveFeature, Query

CONTAINER = 'container!="",container!="POD",pod!=""'


def _containers(name: str, unit: str, high: float, counter: str, doc: str) -> Query:
    return one(name, unit, high, f"sum by ($on) (rate({counter}{{{CONTAINER}}}[$w]))", doc, KUBELET)


def _requests(kind: str, resource: str, unit: str, scale: str, high: float) -> Query:
    series = f'kube_pod_container_resource_{kind}{{resource="{resource}",node!=""}}'
    promql = f"{scale}sum by (node) (max by (node, namespace, pod, container) ({series}))"
    return one(f"{resource}_{kind}", unit, high, promql, f"{kind} of the node's containers", STATE)


PODS: Final = (
    one(
        "pods_cpu",
        "millicores",
        1_024_000.0,
        f"1000 * sum by ($on) (rate(container_cpu_usage_seconds_total{{{CONTAINER}}}[$w]))",
        "CPU in use by containers",
        KUBELET,
    ),
    one(
        "root_cpu",
        "millicores",
        1_024_000.0,
        '1000 * sum by ($on) (rate(container_cpu_usage_seconds_total{id="/"}[$w]))',
        "CPU in use by the whole node, as cAdvisor has it",
        KUBELET,
    ),
    one(
        "pods_memory",
        "bytes",
        2.0**45,
        f"sum by ($on) (container_memory_working_set_bytes{{{CONTAINER}}})",
        "working set of containers",
        KUBELET,
    ),
    one(
        "root_memory",
        "bytes",
        2.0**45,
        'sum by ($on) (container_memory_working_set_bytes{id="/"})',
        "working set of the whole node, as cAdvisor has it",
        KUBELET,
    ),
    one(
        "pods_throttled",
        "ratio",
        1.0,
        f"sum by ($on) (rate(container_cpu_cfs_throttled_periods_total{{{CONTAINER}}}[$w]))"
        f" / sum by ($on) (rate(container_cpu_cfs_periods_total{{{CONTAINER}}}[$w]))",
        "periods in which containers were held at their CPU limit",
        KUBELET,
    ),
    _containers(
        "pods_read", "bytes/s", 8e9, "container_fs_reads_bytes_total", "read from disks by containers"
    ),
    _containers(
        "pods_written", "bytes/s", 8e9, "container_fs_writes_bytes_total", "written to disks by containers"
    ),
    one(
        "pods_received",
        "bytes/s",
        50e9,
        'sum by ($on) (rate(container_network_receive_bytes_total{pod!=""}[$w]))',
        "received by pods",
        KUBELET,
    ),
    one(
        "pods_sent",
        "bytes/s",
        50e9,
        'sum by ($on) (rate(container_network_transmit_bytes_total{pod!=""}[$w]))',
        "sent by pods",
        KUBELET,
    ),
    one(
        "pods_oom_kills",
        "1/h",
        1000.0,
        f"sum by ($on) (increase(container_oom_events_total{{{CONTAINER}}}[1h]))",
        "containers killed for lack of memory",
        KUBELET,
    ),
    one("pods_running", "count", 1024.0, "sum by ($on) (kubelet_running_pods)", "pods that run", KUBELET),
    one(
        "containers_running",
        "count",
        4096.0,
        'sum by ($on) (kubelet_running_containers{container_state="running"})',
        "containers that run",
        KUBELET,
    ),
    one(
        "kubelet_relist",
        "seconds",
        60.0,
        "histogram_quantile(0.99, sum by (le, $on) (rate(kubelet_pleg_relist_duration_seconds_bucket[$w])))",
        "99th percentile of the kubelet's look at its containers",
        KUBELET,
    ),
    one(
        "pod_start",
        "seconds",
        3600.0,
        "histogram_quantile(0.5, sum by (le, $on) (rate(kubelet_pod_start_duration_seconds_bucket[10m])))",
        "median time from a pod's arrival on the node to its start",
        KUBELET,
    ),
    one(
        "runtime_errors",
        "1/s",
        1000.0,
        "sum by ($on) (rate(kubelet_runtime_operations_errors_total[$w]))",
        "failed calls to the container runtime",
        KUBELET,
    ),
)

_CONDITIONS = {
    "Ready": ("ready", "1 while the node is Ready"),
    "MemoryPressure": ("memory_pressure", "1 while the kubelet reports memory pressure"),
    "DiskPressure": ("disk_pressure", "1 while the kubelet reports disk pressure"),
    "PIDPressure": ("pid_pressure", "1 while the kubelet reports a lack of process numbers"),
    "NetworkUnavailable": ("network_unavailable", "1 while the node's network is not set up"),
}

OBJECTS: Final = (
    Query(
        STATE,
        'max by (node, condition) (kube_node_status_condition{status="true"})',
        tuple(LiveFeature(n, "count", 0.0, 1.0, doc, of) for of, (n, doc) in _CONDITIONS.items()),
        "condition",
    ),
    one(
        "unschedulable",
        "count",
        1.0,
        "max by (node) (kube_node_spec_unschedulable)",
        "1 while the node is cordoned",
        STATE,
    ),
    one(
        "ready_flips",
        "1/h",
        60.0,
        'max by (node) (changes(kube_node_status_condition{condition="Ready",status="true"}[1h]))',
        "how often readiness changed",
        STATE,
    ),
    one(
        "pods_assigned",
        "count",
        1024.0,
        'count by (node) (max by (node, namespace, pod) (kube_pod_info{node!=""}))',
        "pods that are bound to the node, ended ones too",
        STATE,
    ),
    one(
        "restarts",
        "1/h",
        10_000.0,
        "sum by (node) (max by (namespace, pod) (increase(kube_pod_container_status_restarts_total[1h]))"
        ' * on (namespace, pod) group_left (node) max by (node, namespace, pod) (kube_pod_info{node!=""}))',
        "restarts of the node's containers",
        STATE,
    ),
    _requests("requests", "cpu", "millicores", "1000 * ", 1_024_000.0),
    _requests("limits", "cpu", "millicores", "1000 * ", 16_000_000.0),
    _requests("requests", "memory", "bytes", "", 2.0**45),
    _requests("limits", "memory", "bytes", "", 2.0**48),
)

CLUSTER_QUERIES: Final = PODS + OBJECTS
