# SPDX-License-Identifier: Apache-2.0
"""A virtual control plane: what lets the real client run against virtual clusters, and what its tests use.

    from shoal_simulations.control_plane import ApiServer, node, pod

    with ApiServer() as api:
        api.create("nodes", node("n1", cpu="4", memory="16Gi", labels={"topology.kubernetes.io/zone": "a"}))
        api.create("pods", pod("p1", cpu="500m", gates=["shoal.dev/placement"]))
        kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")     # any Kubernetes client connects with it
        api.patch("pods", "p1", {"spec": {"schedulingGates": []}})
        api.bind("p1", "n1")
        api.wait(lambda: api.get("pods", "p1")["spec"].get("nodeName") == "n1")

`api.url` is plain HTTP on loopback. Faults: `down`, `up`, `delay`, `error`, `deny`, `silence_watches`,
`restore_watches`, `end_watches`, `compact`. `api.requests` is what was asked. A CustomResourceDefinition that
is created is served at once. docs/control-plane.md has the table of what is emulated and what is not.
"""

from shoal_simulations.control_plane.api import ApiServer
from shoal_simulations.control_plane.builders import node, pod, ready
from shoal_simulations.control_plane.configuration import Configuration, read_configuration
from shoal_simulations.control_plane.extenders import Stanza
from shoal_simulations.control_plane.failures import ApiError
from shoal_simulations.control_plane.kubelet import Kubelet
from shoal_simulations.control_plane.requests import Request
from shoal_simulations.control_plane.scheduler import Attempt, Scheduler

__all__ = [
    "ApiError",
    "ApiServer",
    "Attempt",
    "Configuration",
    "Kubelet",
    "Request",
    "Scheduler",
    "Stanza",
    "node",
    "pod",
    "read_configuration",
    "ready",
]
