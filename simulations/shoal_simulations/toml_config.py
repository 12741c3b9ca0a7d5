# SPDX-License-Identifier: Apache-2.0
"""TOML into frozen, typed sections; whatever is wrong becomes one line: file, field, problem, remedy."""

from __future__ import annotations

import difflib
import json
import math
import tomllib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from shoal_common.errors import InputError


class Section(BaseModel):
    """A table of a TOML file: frozen, no unknown key, each field explained by the docstring under it."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


Config = TypeVar("Config", bound=Section)

REMEDIES = {
    "missing": "add it",
    "int_parsing": "give a whole number",
    "int_type": "give a whole number",
    "int_from_float": "give a whole number",
    "float_type": "give a number",
    "float_parsing": "give a number",
    "finite_number": "give a finite number",
    "bool_parsing": "give true or false",
    "bool_type": "give true or false",
    "string_type": 'give a text in "quotes"',
    "list_type": "give a list in [brackets]",
    "tuple_type": "give a list in [brackets]",
    "model_type": "give a table",
    "too_short": "give at least {min_length}",
    "string_too_short": "give at least {min_length} letter(s)",
    "greater_than": "give a number above {gt}",
    "greater_than_equal": "give at least {ge}",
    "less_than": "give a number below {lt}",
    "less_than_equal": "give at most {le}",
    "literal_error": "use {expected}",
    "string_pattern_mismatch": "use lower-case letters, digits and dashes",
}


def read_toml(path: Path, field: str) -> dict[str, Any]:
    """Parse a TOML file that the option `field` named.

    Raises:
        InputError: no such file, not UTF-8, or not TOML (with line and column).
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(str(path), field, "no such file", "name an existing TOML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            str(path), field, f"cannot be read ({error})", "name a readable UTF-8 file"
        ) from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, or a number or nesting beyond limits
        raise InputError(str(path), "TOML", str(error), "repair the syntax there") from None


def validate(model: type[Config], document: dict[str, Any], where: str) -> Config:
    """Build `model` from a parsed document that came from `where`.

    Raises:
        InputError: naming the first wrong field, and how many more there are.
    """
    try:  # strict: "3" and true are no numbers; by way of JSON, where a list may become a tuple
        return model.model_validate_json(json.dumps(document, default=str), strict=True)
    except ValidationError as error:
        first, *rest = error.errors(include_url=False)
        problem, remedy = _explain(model, first)
        more = f" ({len(rest)} more after this one)" if rest else ""
        raise InputError(where, _path(first["loc"]), problem, remedy + more) from None


def _path(loc: tuple[int | str, ...]) -> str:
    """Write a location as a reader of TOML would: clusters[1].nodes[0].count."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return text.removeprefix(".") or "document"


def _explain(model: type[Section], error: ErrorDetails) -> tuple[str, str]:
    """The problem and the remedy of one pydantic error."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return "no such key", _nearest(model, error["loc"])
    if kind == "value_error":  # our own validators say "problem; remedy"
        problem, _, remedy = str(context["error"]).partition("; ")
        return problem, remedy or "correct it"
    template = REMEDIES.get(kind, "correct it")
    remedy = template.format(**{k: _number(v) for k, v in context.items()})
    message = error["msg"][0].lower() + error["msg"][1:]
    return (message if kind == "missing" else f"{message}, not {_shown(error['input'])}"), remedy


def _number(value: object) -> object:
    return int(value) if isinstance(value, float) and math.isfinite(value) and value == int(value) else value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _nearest(model: type[Section], loc: tuple[int | str, ...]) -> str:
    """Suggest the key that was probably meant, else name the keys there are."""
    keys = _keys_at(model, loc[:-1])
    close = difflib.get_close_matches(str(loc[-1]), keys, n=1)
    return f"did you mean {close[0]}?" if close else f"use one of {', '.join(keys)}"


def _keys_at(model: type[Section], loc: tuple[int | str, ...]) -> list[str]:
    """The keys that the table at `loc` takes, found in the JSON schema of the model."""
    schema = model.model_json_schema()
    node: dict[str, Any] = schema
    for part in loc:
        step = node.get("items") if isinstance(part, int) else node.get("properties", {}).get(part)
        node = _resolve(schema, step or node.get("additionalProperties") or {})
    return sorted(node.get("properties", {}))


def _resolve(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """Follow `$ref` and take the table of an optional section."""
    if "anyOf" in node:
        node = next((option for option in node["anyOf"] if option.get("type") != "null"), {})
    if "$ref" in node:
        found: dict[str, Any] = schema["$defs"][node["$ref"].rsplit("/", 1)[1]]
        return found
    return node
