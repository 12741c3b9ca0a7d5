# SPDX-License-Identifier: Apache-2.0
"""Networks over sets of candidates (torch). Importing this package alone imports no torch."""
