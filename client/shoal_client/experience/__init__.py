# SPDX-License-Identifier: Apache-2.0
"""Experience: each scheduling decision with what was seen, done and what became of it, kept on disk."""
