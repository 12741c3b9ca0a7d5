# SPDX-License-Identifier: Apache-2.0
"""The cluster as its API tells it: lists and watches into records, exact sums and rows."""
