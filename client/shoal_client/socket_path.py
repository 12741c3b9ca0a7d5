# SPDX-License-Identifier: Apache-2.0
"""Where a unix socket is to be made: what a killed process left there goes, everything else stays."""

from __future__ import annotations

import errno
import stat
from pathlib import Path


def make_way(path: Path) -> None:
    """Remove a socket that is left at this path.

    Raises:
        FileExistsError: something that is no socket is there; it is not touched.
        OSError: the socket cannot be removed.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "something other than a socket is there", str(path))
    path.unlink()
