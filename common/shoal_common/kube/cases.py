# SPDX-License-Identifier: Apache-2.0
"""Scoring cases: a JSON list of {name, nodes, pods, pending, services, namespaces}, gzipped or not.

Objects are in Kubernetes' own JSON. `pods` without a node take nothing from any node; FGD counts them as
workload. `pods`, `services` and `namespaces` may be absent.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal_common.errors import InputError
from shoal_common.fields import Field
from shoal_common.kube.snapshot import Snapshot
from shoal_common.manifests import read_namespace, read_node, read_pod, read_service
from shoal_common.pods import PodRecord

FORM = "a case is {name, nodes, pods, pending, services, namespaces}"


@dataclass(frozen=True, slots=True)
class Case:
    """A cluster and a pod to place in it."""

    name: str
    snapshot: Snapshot
    pod: PodRecord


def read_cases(path: Path) -> list[Case]:
    """Read a file of cases.

    Raises:
        InputError: no such file, not JSON, not a list, or a field of a case is missing or wrong.
    """
    document = Field(str(path), "", _decode(path))
    if not isinstance(document.content, list):
        document.refuse("is not a list", f"write a JSON list of cases; {FORM}")
    return [_case(element) for element in document.items()]


def _decode(path: Path) -> object:
    try:
        raw = path.read_bytes()
        return json.loads(gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(str(path), "file", "is a broken gzip file", "write it again") from error
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise InputError(str(path), "file", reason.lower(), "give --input a file of cases") from error
    except UnicodeDecodeError as error:
        raise InputError(str(path), "file", "is not UTF-8 text", "write it as UTF-8 JSON") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise InputError(str(path), place, f"is not JSON: {error.msg}", "write valid JSON") from error
    except (RecursionError, ValueError) as error:  # nesting, or a whole number of over 4,300 digits
        problem = "nests too deep or holds too long a number"
        raise InputError(str(path), "file", problem, "write cases as kubectl prints objects") from error


def _case(source: Field) -> Case:
    name = source.get("name").text()
    case = Field(source.where, name, source.content)
    for key in ("nodes", "pending"):
        if not case.get(key).present:
            case.get(key).refuse("is missing", FORM)
    snapshot = Snapshot(
        nodes=tuple(read_node(node) for node in _distinct(case.get("nodes"))),
        pods=tuple(read_pod(pod) for pod in case.get("pods").items()),
        services=tuple(read_service(service) for service in case.get("services").items()),
        namespaces=tuple(read_namespace(namespace) for namespace in case.get("namespaces").items()),
    )
    return Case(name, snapshot, read_pod(case.get("pending")))


def _distinct(nodes: Field) -> Iterator[Field]:
    seen: set[str] = set()
    for node in nodes.items():
        name = node.get("metadata").get("name")
        if name.text() in seen:
            name.refuse(f"{name.text()!r} appears twice", "give every node its own name")
        seen.add(name.text())
        yield node
