# SPDX-License-Identifier: Apache-2.0
"""Speed and parity side by side with published figures."""
