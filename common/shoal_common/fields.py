# SPDX-License-Identifier: Apache-2.0
"""Reading a decoded JSON document field by field; errors name the file, the field and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import NoReturn, TypeVar, overload

from shoal_common.errors import InputError
from shoal_common.quantity import parse_quantity

Default = TypeVar("Default")


class Field:
    """One place in a document: where it was read, its path, and what stands there (None when absent)."""

    __slots__ = ("_inside", "_last", "content", "where")

    def __init__(self, where: str, path: str, content: object, inside: Field | None = None) -> None:
        """The place `path`, below the place `inside` where there is one."""
        self.where, self._last, self.content, self._inside = where, path, content, inside

    @property
    def path(self) -> str:
        """The place's path from the document's root: `spec.containers[0].name`; "" is the root itself."""
        if self._inside is None:
            return self._last
        above = self._inside.path
        return f"{above}.{self._last}" if above and not self._last.startswith("[") else above + self._last

    def refuse(self, problem: str, remedy: str) -> NoReturn:
        """Raise the InputError of this place; a name in its path that would break the line is escaped."""
        path = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in self.path)
        raise InputError(self.where, path or "document", problem, remedy)

    def get(self, key: str) -> Field:
        """The member of this object; absent when this is absent.

        Raises:
            InputError: this is not an object.
        """
        content = self.content
        if content is None:
            return Field(self.where, key, None, self)
        if not isinstance(content, dict):
            self.refuse(f"is {_kind(content)}", "write a JSON object")
        return Field(self.where, key, content.get(key), self)

    def members(self) -> dict[str, object]:
        """The members of this object; none when absent."""
        if self.content is None:
            return {}
        if not isinstance(self.content, dict):
            self.refuse(f"is {_kind(self.content)}", "write a JSON object")
        return self.content

    def items(self) -> Iterator[Field]:
        """The elements of this list; none when absent."""
        if self.content is None:
            return
        if not isinstance(self.content, list):
            self.refuse(f"is {_kind(self.content)}", "write a JSON list")
        for index, element in enumerate(self.content):
            yield Field(self.where, f"[{index}]", element, self)

    @property
    def present(self) -> bool:
        """Whether anything stands here."""
        return self.content is not None

    @overload
    def text(self) -> str: ...
    @overload
    def text(self, default: Default) -> str | Default: ...
    def text(self, default: Default | None = None) -> str | Default | None:
        """The string here, the default when absent; required when there is no default."""
        if self.content is None and default is not None:
            return default
        if not isinstance(self.content, str):
            self.refuse(f"is {_kind(self.content)}", "write a string")
        return self.content

    def integer(self, default: int | None = None, low: int = -(2**63), high: int = 2**63 - 1) -> int:
        """The whole number from `low` to `high` here, the default when absent; required without a default."""
        if self.content is None and default is not None:
            return default
        if not isinstance(self.content, int) or isinstance(self.content, bool):
            self.refuse(f"is {_kind(self.content)}", "write a whole number")
        if not low <= self.content <= high:
            self.refuse(f"{str(self.content)[:40]} is out of range", f"write {low} to {high}")
        return self.content

    def flag(self) -> bool:
        """The boolean here; False when absent."""
        if self.content is None:
            return False
        if not isinstance(self.content, bool):
            self.refuse(f"is {_kind(self.content)}", "write true or false")
        return self.content

    def texts(self) -> tuple[str, ...]:
        """The list of strings here; empty when absent."""
        return tuple(item.text() for item in self.items())

    def labels(self) -> dict[str, str]:
        """The map of strings here; empty when absent."""
        members = self.members()
        if all(type(text) is str for text in members.values()):
            return members.copy()  # type: ignore[return-value]
        return {key: self.get(key).text() for key in members}

    def quantities(self) -> dict[str, Fraction]:
        """The map of Kubernetes quantities here; empty when absent."""
        return {key: self.get(key).quantity() for key in self.members()}

    def quantity(self) -> Fraction:
        """The Kubernetes quantity here, never negative."""
        try:
            parsed = parse_quantity(self.content)
        except ValueError as error:
            problem, _, remedy = str(error).partition(": ")
            self.refuse(problem, remedy)
        if parsed < 0:
            self.refuse(f"{self.content!r} is negative", "write zero or more")
        return parsed


def _kind(content: object) -> str:
    if content is None:
        return "missing"
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a whole number"}
    return f"{names.get(type(content), 'a number')}, {str(content)[:40]!r}"
