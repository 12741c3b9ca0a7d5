# SPDX-License-Identifier: Apache-2.0
"""What client, server and simulations share: the domain, the scorers, the learners, privacy and the twin."""

__version__ = "0.1.0"
