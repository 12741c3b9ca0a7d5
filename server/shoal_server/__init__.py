# SPDX-License-Identifier: Apache-2.0
"""The aggregation server: rounds, admission, aggregation, checkpoints."""
