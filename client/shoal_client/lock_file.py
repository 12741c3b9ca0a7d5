# SPDX-License-Identifier: Apache-2.0
"""A lock that one process holds, and that ends with it, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def hold(path: Path) -> int | None:
    """The descriptor of the file, which holds the lock until it is closed; None where another process does.

    Raises:
        OSError: the file cannot be made or opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
