# SPDX-License-Identifier: Apache-2.0
"""The client, one per cluster: trains locally under differential privacy and ships updates."""
