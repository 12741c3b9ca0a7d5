# SPDX-License-Identifier: Apache-2.0
"""The subcommands that `simulations` brings to `shoal`."""
