# SPDX-License-Identifier: Apache-2.0
"""Scorers: each gives every feasible node of a pod a score; the higher the better."""
