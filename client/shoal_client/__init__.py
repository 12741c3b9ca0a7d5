# SPDX-License-Identifier: Apache-2.0
"""The client, one per cluster: trains under differential privacy, ships updates, serves the policy.

Two processes (`daemon`), one that serves and one that trains, which share files and a socket only.

    serve/       what kube-scheduler asks, wired with all that follows by `serving`
    the API      kube_api (kube_errors, kube_resources, kube_watch), permissions
    the state    informer -> state (changes, reading, summary) -> inventory (reservations, node_health,
                 node_state, live_tables): nodes, pods and rows
    collect/     what exporters measure, by node
    resources    operator -> policies, membership, status, objectives, limits; their form: policy_spec, crds
    actuate/     what is done to pods, nodes and routes; admission says which nodes take a pod
    experience/  decisions and what became of them, on disk
    training     app (Flower's shim) -> remote -> trainer -> live_trainer -> train, store
    operators    doctor (stanza, findings), explaining (explanation), replaying (live_twin), metrics
    small        periodic, lock_file, socket_path
"""
