# SPDX-License-Identifier: Apache-2.0
"""Label selectors, node selector terms, taints and tolerations: small records that can match.

Source: apimachinery labels/selector.go and meta/v1/helpers.go, component-helpers/scheduling/corev1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Labels = Mapping[str, str]

INTEGER = re.compile(r"[+-]?[0-9]+")  # stricter than int(): a label may be "1_0"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One `key operator values` line of a selector; operators In NotIn Exists DoesNotExist Gt Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Labels) -> bool:
        """Whether the labels satisfy this line; Gt and Lt compare int64s and fail on anything else."""
        found = labels.get(self.key)
        match self.operator:
            case "In":
                return found in self.values if found is not None else False
            case "NotIn":
                return found not in self.values
            case "Exists":
                return found is not None
            case "DoesNotExist":
                return found is None
            case _:
                return found is not None and self._compares(found)

    def _compares(self, found: str) -> bool:
        texts = (found, *self.values[:1])
        if len(texts) < 2 or not all(INTEGER.fullmatch(text) for text in texts):
            return False
        left, right = map(int, texts)
        if not all(-(2**63) <= number < 2**63 for number in (left, right)):
            return False
        return left > right if self.operator == "Gt" else left < right


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """All requirements must hold. No requirement matches everything; an absent selector is None, not this."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Labels) -> bool:
        """Whether the labels satisfy every requirement."""
        return all(requirement.matches(labels) for requirement in self.requirements)


@dataclass(frozen=True, slots=True)
class NodeSelectorTerm:
    """Requirements on a node's labels and on its name (matchFields); an empty term matches no node."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def matches(self, name: str, labels: Labels) -> bool:
        """Whether a node of this name with these labels satisfies the term."""
        if not (self.labels or self.fields):
            return False
        fields = {"metadata.name": name}
        return all(r.matches(labels) for r in self.labels) and all(r.matches(fields) for r in self.fields)


@dataclass(frozen=True, slots=True)
class Taint:
    """A node's taint."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Toleration:
    """A pod's toleration; an empty key (with Exists) tolerates every key, an empty effect every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Whether this toleration covers the taint."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        return self.operator == "Exists" or (self.operator == "Equal" and self.value == taint.value)


def untolerated(
    taints: Iterable[Taint], tolerations: Iterable[Toleration], effects: tuple[str, ...]
) -> Iterable[Taint]:
    """The taints with one of these effects that no toleration covers, in the node's order."""
    return (
        taint
        for taint in taints
        if taint.effect in effects and not any(toleration.tolerates(taint) for toleration in tolerations)
    )
