# SPDX-License-Identifier: Apache-2.0
"""Reproducible experiments: one module each, with `run(...) -> dict` in the form of a results page."""
