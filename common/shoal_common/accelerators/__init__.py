# SPDX-License-Identifier: Apache-2.0
"""Accelerators: how a GPU is divided, by milli-GPU sharing or by MIG."""
