# SPDX-License-Identifier: Apache-2.0
"""A store as one Parquet file: a row a decision, in the order they were made.

Names stay hashed. Candidates, where they are asked for, are flat lists of K times the features; the file's
metadata names the features, the reward's terms and the digest of both.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shoal_client.experience.reader import ExperienceReader
from shoal_client.experience.records import Seen, Stored
from shoal_common.cluster import P_CLASS, P_CPU, P_GPU, P_GPUS, P_MEMORY
from shoal_common.errors import InputError
from shoal_common.observation import (
    CONTEXT_FEATURES,
    NODE_FEATURES,
    PAIR_FEATURES,
    TASK_FEATURES,
    schema_hash,
)
from shoal_common.reward import TERMS

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_TOGETHER: Final = 1_000
DECISION: Final = (
    ("id", "int64"), ("uid", "string"), ("attempt", "int32"), ("at", "float64"), ("source", "string"),
    ("scheduler", "string"), ("mode", "string"), ("policy", "string"), ("tenant", "string"),
    ("app", "string"), ("chosen", "int32"),
)  # fmt: skip
RESULT: Final = (
    ("outcome", "string"), ("reason", "string"), ("node", "string"), ("action", "int32"),
    ("propensity", "float64"), ("bound_at", "float64"), ("started_at", "float64"), ("ready_at", "float64"),
    ("ended_at", "float64"), ("seconds", "float64"), ("watts", "float64"), ("slowdown", "float64"),
    ("sla_met", "bool_"), ("learnable", "bool_"),
)  # fmt: skip
POD: Final = (
    ("cpu_millicores", P_CPU), ("memory_bytes", P_MEMORY), ("gpu_milli", P_GPU), ("gpus", P_GPUS),
    ("pod_class", P_CLASS),
)  # fmt: skip
CANDIDATES: Final = ("node_features", "pair_features", "task_features", "context_features")


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written: rows, those that are closed, those that may be learned from."""

    rows: int
    closed: int
    learnable: int


def export(
    directory: Path,
    file: Path,
    since: float = 0.0,
    until: float = math.inf,
    candidates: bool = False,
) -> Exported:
    """Write the decisions made in [since, until) (seconds since the epoch); the file appears as a whole.

    Raises:
        InputError: the store cannot be read, or the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema, counts = _schema(candidates), [0, 0, 0]
    staging = file.with_name(file.name + ".part")
    try:
        with (
            ExperienceReader(directory) as reader,
            pq.ParquetWriter(str(staging), schema, compression="zstd") as writer,
        ):
            for rows in _batches(reader.rows(since, until)):
                columns = [_row(row, candidates) for row in rows]
                writer.write_table(pa.Table.from_pylist(columns, schema=schema))
                counts[0] += len(rows)
                counts[1] += sum(row.result is not None for row in rows)
                counts[2] += sum(row.result is not None and row.result.learnable for row in rows)
        staging.replace(file)
    except OSError as error:
        problem = error.strerror or str(error)
        raise InputError(str(file), "--out", problem, "give a file in a folder that can be written") from None
    finally:
        staging.unlink(missing_ok=True)
    return Exported(*counts)


def _batches(rows: Iterator[Stored]) -> Iterator[list[Stored]]:
    while batch := list(islice(rows, ROWS_TOGETHER)):
        yield batch


def _schema(candidates: bool) -> pa.Schema:
    import pyarrow as pa

    kinds = {name: getattr(pa, kind)() for name, kind in (*DECISION, *RESULT)}
    fields = [pa.field(name, kind) for name, kind in kinds.items()]
    fields += [pa.field(name, pa.float64()) for name, _ in POD]
    fields += [pa.field(f"reward_{term}", pa.float32()) for term in TERMS]
    fields += [pa.field(name, pa.float32()) for name in ("quota_cpu", "quota_memory")]
    fields += [pa.field("closed", pa.int64()), pa.field("final", pa.bool_()), pa.field("kept", pa.int32())]
    if candidates:
        fields += [pa.field(name, pa.list_(pa.float32())) for name in (*CANDIDATES, "logits", "propensities")]
        fields += [pa.field("mask", pa.list_(pa.bool_())), pa.field("names", pa.list_(pa.string()))]
    tables = zip(CANDIDATES, (NODE_FEATURES, PAIR_FEATURES, TASK_FEATURES, CONTEXT_FEATURES), strict=True)
    about = {"schema_hash": schema_hash(), "reward_terms": TERMS}
    about |= {name: [feature.name for feature in table] for name, table in tables}
    return pa.schema(fields, metadata={"shoal": json.dumps(about)})


def _row(row: Stored, candidates: bool) -> dict[str, Any]:
    decision, result = row.decision, row.result
    out: dict[str, Any] = {name: getattr(decision, name) for name, _ in DECISION}
    out |= {name: float(decision.pod[column]) for name, column in POD}
    out["quota_cpu"], out["quota_memory"] = decision.quota
    out |= {"closed": row.closed or None, "final": row.final, "reason": decision.reason}
    out["kept"] = 0 if decision.seen is None else len(decision.seen)
    if result is not None:
        out |= {name: _known(getattr(result, name)) for name, _ in RESULT}
        reward = result.reward or (None,) * len(TERMS)
        out |= {f"reward_{term}": value for term, value in zip(TERMS, reward, strict=True)}
    if candidates and decision.seen is not None:
        out |= _candidates(decision.seen)
    return out


def _candidates(seen: Seen) -> dict[str, Any]:
    arrays = (seen.node, seen.pair, seen.task, seen.ctx)
    out: dict[str, Any] = {
        name: array.astype("float32").reshape(-1) for name, array in zip(CANDIDATES, arrays, strict=True)
    }
    out |= {"logits": seen.logits.reshape(-1), "propensities": seen.propensity.reshape(-1)}
    return out | {"mask": seen.mask.reshape(-1), "names": list(seen.names)}


def _known(value: Any) -> Any:
    """NaN as null."""
    return None if isinstance(value, float) and math.isnan(value) else value
