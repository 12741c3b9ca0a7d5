# SPDX-License-Identifier: Apache-2.0
"""The digital twin: an event-driven cluster whose physics is compiled and whose seeds decide everything."""
