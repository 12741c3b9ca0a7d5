# SPDX-License-Identifier: Apache-2.0
"""Differential privacy: plan, accountant, ledger, and the one type that leaves a cluster."""
