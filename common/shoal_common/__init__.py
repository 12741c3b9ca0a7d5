# SPDX-License-Identifier: Apache-2.0
"""What client, server and simulations share: the domain, the scorers, the learners, privacy and the twin."""

import os

# Set here, because Flower and Ray read them while they are imported and every package of ours imports this
# one first: nothing phones home, nothing looks for updates, nothing is installed at run time.
os.environ.update(
    FLWR_TELEMETRY_ENABLED="0",
    FLWR_DISABLE_UPDATE_CHECK="1",
    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION="1",
    RAY_USAGE_STATS_ENABLED="0",
)

__version__ = "0.1.0"
