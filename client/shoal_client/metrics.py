# SPDX-License-Identifier: Apache-2.0
"""Every metric that a client exports, in one place: prefix `shoal_`, base units, bounded labels.

Never a label with a pod's, tenant's or user's name. One process, one registry; docs/operations/metrics.md
lists them, and a test keeps page and code equal.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry

REGISTRY = CollectorRegistry(auto_describe=True)
