# SPDX-License-Identifier: Apache-2.0
"""Federations of virtual clusters in one process, on synthetic and real traces."""
