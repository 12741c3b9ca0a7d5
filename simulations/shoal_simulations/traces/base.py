# SPDX-License-Identifier: Apache-2.0
"""What every trace becomes, and the streaming CSV reading that all readers share.

`PodTrace` and `NodeTrace` are structs of arrays with units in the names. A reader streams rows, checks each
field and raises `InputError` that names file, line and column; files ending in .gz are unpacked on the way.
"""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

import numpy as np
import numpy.typing as npt

from shoal_common.errors import InputError

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

SERVICE_CLASSES = ("best_effort", "burstable", "guaranteed", "latency_sensitive")
"""Rising sensitivity to latency; the index is what `PodTrace.service_class` holds."""

CPU_MILLI_PER_UNIT = 64_000
MEMORY_MIB_PER_UNIT = 262_144
"""Borg publishes requests and capacities relative to its largest machine, which is counted here as 64 cores
and 256 GiB: a convention, not a measurement."""

MAX_UNITS = 1e6
"""More of the largest machine than any request or machine of a trace may be: such a number is a mistake."""


@dataclass(frozen=True, slots=True)
class NodeTrace:
    """N nodes: names, capacities, devices, GPU model as an index into `models` (-1 without)."""

    names: tuple[str, ...]
    cpu_milli: I64
    memory_mib: I64
    gpus: I64
    model: I64
    models: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, slots=True)
class PodTrace:
    """P pods in file order. NaN where a trace has no time, -1 where it has no class."""

    names: tuple[str, ...]
    arrival_s: F64
    cpu_milli: I64
    memory_mib: I64
    gpu_milli: I64  # per device
    num_gpu: I64
    gpu_spec: I64  # index into gpu_specs
    gpu_specs: tuple[str, ...]  # accepted models joined by "|"; "" = any
    duration_s: F64
    wait_s: F64  # what the pod waited in the original cluster
    tenant: I64  # index into tenants
    tenants: tuple[str, ...]
    priority: I64
    service_class: I64  # index into SERVICE_CLASSES

    def __len__(self) -> int:
        return len(self.names)

    @property
    def timed(self) -> bool:
        """Whether the trace says when pods arrive."""
        return len(self) > 0 and not bool(np.isnan(self.arrival_s).any())


class Vocabulary:
    """Numbers names in the order in which they appear."""

    def __init__(self, *names: str) -> None:
        self._index = {name: i for i, name in enumerate(names)}

    def __getitem__(self, name: str) -> int:
        return self._index.setdefault(name, len(self._index))

    @property
    def names(self) -> tuple[str, ...]:
        """All names so far, by index."""
        return tuple(self._index)


class Row:
    """One line of a table; its getters check a field and name file, line and column if it is wrong."""

    __slots__ = ("columns", "line", "path", "values")

    def __init__(self, path: Path, line: int, columns: dict[str, int], values: list[str]) -> None:
        self.path, self.line, self.columns, self.values = path, line, columns, values

    def error(self, column: str, problem: str, remedy: str) -> InputError:
        """The error to raise about a field of this row."""
        return InputError(f"{self.path}:{self.line}", column, problem, remedy)

    def text(self, column: str, required: bool = True) -> str:
        """A field as written.

        Raises:
            InputError: the field is empty and required.
        """
        value = self.values[self.columns[column]]
        if required and not value:
            raise self.error(column, "is empty", "give a value")
        return value

    def integer(self, column: str, low: int = 0, high: int = 2**53) -> int:
        """A whole number within bounds.

        Raises:
            InputError: it is no whole number or out of bounds.
        """
        value = self.values[self.columns[column]]
        try:
            number = int(value.replace("_", "?"))  # Python's own digit grouping is no CSV
        except ValueError:
            raise self.error(column, f"{value[:40]!r} is no whole number", "write digits only") from None
        if not low <= number <= high:
            raise self.error(column, f"{number} is out of bounds", f"keep it within {low} and {high}")
        return number

    def number(self, column: str, low: float = 0.0, high: float = math.inf) -> float:
        """A finite number within bounds.

        Raises:
            InputError: it is no finite number or out of bounds.
        """
        value = self.values[self.columns[column]]
        try:
            number = float(value.replace("_", "?"))
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise self.error(column, f"{value[:40]!r} is no finite number", "write a number such as 0.5")
        if not low <= number <= high:
            raise self.error(column, f"{value[:40]} is out of bounds", f"keep it within {low} and {high}")
        return number

    def choice(self, column: str, known: Sequence[str]) -> str:
        """One of the known words.

        Raises:
            InputError: it is another one.
        """
        value = self.values[self.columns[column]]
        if value not in known:
            raise self.error(column, f"{value[:40]!r} is unknown", f"use one of {', '.join(known)}")
        return value


def open_text(path: Path) -> TextIO:
    """Open a table for reading, unpacking .gz.

    Raises:
        InputError: there is no such file.
    """
    if not path.is_file():
        raise InputError(str(path), "file", "does not exist", "check the path")
    if path.suffix == ".gz":
        return TextIOWrapper(gzip.open(path), encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Stream (line number, fields), empty lines left out.

    Raises:
        InputError: the file is missing, no text, truncated or broken as CSV.
    """
    line = 0
    with open_text(path) as file:
        reader = csv.reader(file)
        try:
            for values in reader:
                line = reader.line_num
                if values:
                    yield line, values
        except UnicodeDecodeError as error:
            raise InputError(f"{path}:{line + 1}", "encoding", "is not UTF-8", "save it as UTF-8") from error
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(f"{path}:{line + 1}", "gzip", str(error), "get the file again") from error
        except csv.Error as error:
            raise InputError(f"{path}:{line + 1}", "CSV", str(error), "repair the line") from error


def table(path: Path, required: Sequence[str], header: bool = True) -> Iterator[Row]:
    """Stream the rows of a table with a header, or of one without whose columns are `required`.

    Raises:
        InputError: a column is missing, a row has too few or too many fields, or the table has no row.
    """
    names = None if header else list(required)
    empty = True
    for line, values in lines(path):
        if names is None:
            names = values
            for column in required:
                if column not in names:
                    raise InputError(f"{path}:{line}", column, "the column is missing", f"have {required}")
            continue
        if empty:
            columns = {name: i for i, name in enumerate(names)}
        empty = False
        if len(values) != len(names):
            column = names[min(len(values), len(names) - 1)]
            raise InputError(
                f"{path}:{line}", column, f"{len(values)} fields", f"write {len(names)} fields to a row"
            )
        yield Row(path, line, columns, values)
    if empty:
        raise InputError(f"{path}:1", "rows", "the table has none", "check that the file is complete")


def duration(start: float | None, end: float | None) -> float:
    """Seconds between two times; NaN if one is unknown."""
    return math.nan if start is None or end is None else end - start


def ints(values: Sequence[int]) -> I64:
    """A column of whole numbers."""
    return np.array(values, dtype=np.int64)


def floats(values: Sequence[float]) -> F64:
    """A column of numbers."""
    return np.array(values, dtype=np.float64)
