# SPDX-License-Identifier: Apache-2.0
"""The one way to compile a kernel: numba, cached on disk, without the GIL, IEEE arithmetic kept.

`fastmath` stays off: the scores of kube-scheduler and of FGD must come out to the last bit.

A kernel freezes the constants and kernels that it imports, but numba looks only at the kernel's own file to
tell whether cached code is stale. So every cache entry also carries a stamp of all files that kernels use.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

SOURCES = (
    "cluster.py",
    "features.py",
    "observation.py",
    "kernels.py",
    "accelerators/*.py",
    "replay/store.py",
    "scorers/f*.py",
    *(
        f"twin/{name}.py"
        for name in ("accounting", "engine", "physics", "placement", "scoring", "state", "step")
    ),
)


def _stamp() -> tuple[tuple[str, int, int], ...]:
    """Name, time and size of every file that kernels draw on."""
    root = Path(__file__).parent
    files = sorted(path for pattern in SOURCES for path in root.glob(pattern))
    return tuple((path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in files)


STAMP = _stamp()


def _compiled(function: Function, **options: bool) -> Function:
    compiled = numba.njit(cache=True, nogil=True, error_model="numpy", **options)(function)
    file = compiled._cache._cache_file
    file._source_stamp = (file._source_stamp, STAMP)
    return cast(Function, compiled)


def kernel(function: Function) -> Function:
    """Compile a function of arrays and numbers with numba; its type, as mypy sees it, stays the same."""
    return _compiled(function)


def lean_kernel(function: Function) -> Function:
    """`kernel` without numba's reference counts, for kernels that only view arrays which the caller owns.

    Such a kernel cannot create an array nor assign one to a slice of another. Counting is atomic: it costs
    several times the arithmetic of small kernels, and threads that share an array wait for one another.
    """
    return _compiled(function, _nrt=False)
