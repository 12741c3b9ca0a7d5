# SPDX-License-Identifier: Apache-2.0
"""The client, one per cluster: trains under differential privacy, ships updates, serves the policy.

Two processes (`daemon`), one that serves (`serving`) and one that trains; they share files and a socket.

    kube/        the Kubernetes API: one way to it, errors, resources, permissions
    state/       informer -> live (changes, reading, summary) -> inventory (reservations, node_health,
                 node_state, live_tables): nodes, pods and rows
    collect/     what exporters measure, by node
    policies/    our custom resources: spec and crds, registry, operator, statuses, limits
    serve/       what kube-scheduler asks: extender, gRPC scorer, guard
    actuate/     what is done to pods, nodes and routes; `admission` says which nodes take a pod,
                 `placement` is what a gated pod carries of its decision
    experience/  decisions and what became of them, on disk
    training/    app (Flower's shim) -> remote -> server -> live -> `train`, with rounds on disk
    diagnosis/   doctor, explain, replay
    commands/    `shoal client ...`; `metrics` is all that is exported
"""
