# SPDX-License-Identifier: Apache-2.0
"""Training in place: Flower's shim asks over a socket, a process of its own trains on the live store."""
