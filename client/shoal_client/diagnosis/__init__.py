# SPDX-License-Identifier: Apache-2.0
"""For people: doctor, explain, replay."""
