# SPDX-License-Identifier: Apache-2.0
"""The subcommands that `common` brings to `shoal`."""
