# SPDX-License-Identifier: Apache-2.0
"""The one way to compile a kernel: numba, cached on disk, without the GIL, IEEE arithmetic kept.

`fastmath` stays off: the scores of kube-scheduler and of FGD must come out to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile a function of arrays and numbers with numba; its type, as mypy sees it, stays the same."""
    return cast(Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def lean_kernel(function: Function) -> Function:
    """`kernel` without numba's reference counts, for kernels that only view arrays which the caller owns.

    Such a kernel cannot create an array nor assign one to a slice of another. Counting is atomic: it costs
    several times the arithmetic of small kernels, and threads that share an array wait for one another.
    """
    return cast(Function, numba.njit(cache=True, nogil=True, error_model="numpy", _nrt=False)(function))
