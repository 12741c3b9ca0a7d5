# SPDX-License-Identifier: Apache-2.0
"""What is measured in a cluster: Prometheus queries, eBPF on the nodes, joined to nodes with an age."""
