# SPDX-License-Identifier: Apache-2.0
"""Readers of published traces: each streams, validates and names file, line and column of a bad row."""
