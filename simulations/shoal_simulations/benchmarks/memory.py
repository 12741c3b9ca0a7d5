# SPDX-License-Identifier: Apache-2.0
"""Memory of a process, as the kernel counts it."""

from __future__ import annotations

import os
from pathlib import Path


def resident_bytes(process: int | str = "self") -> int:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
