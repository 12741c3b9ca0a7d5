# SPDX-License-Identifier: Apache-2.0
"""Serving decisions to kube-scheduler: HTTP extender, gRPC scorer, guard. Nothing here imports torch."""
