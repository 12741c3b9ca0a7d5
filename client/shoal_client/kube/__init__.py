# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes API: the one way to it, its errors, its resources, what a client may do."""
