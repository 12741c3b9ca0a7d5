# SPDX-License-Identifier: Apache-2.0
"""Our custom resources: their form, which policy holds for a pod, their statuses, the operator."""
