# SPDX-License-Identifier: Apache-2.0
"""Rules that make one model of many updates."""
