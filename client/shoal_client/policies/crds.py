# SPDX-License-Identifier: Apache-2.0
"""The CustomResourceDefinitions of our resources, generated from their models.

Run `python -m shoal_client.policies.crds` in the checkout; it also writes the table of fields in
docs/operations/scheduling-policy.md.

What the API server wants of a structural schema (apiextensions v1) and pydantic does not write: references
resolved, no `title`, no null types, `const` as an enumeration, and `default: {}` for objects so that the
defaults inside them apply.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shoal_client.policies.spec import (
    GROUP,
    MEMBERSHIP_KIND,
    MEMBERSHIPS_PLURAL,
    POLICIES_PLURAL,
    POLICY_KIND,
    RULES,
    VERSION,
    ApiModel,
    FederationMembershipSpec,
    SchedulingPolicySpec,
)
from shoal_client.policies.status import FederationMembershipStatus, SchedulingPolicyStatus

HEADER = (
    "# SPDX-License-Identifier: Apache-2.0\n# Generated from client/shoal_client/policies/spec.py by"
    " `python -m shoal_client.policies.crds`; do not edit.\n"
)
PAGE = Path("docs/operations/scheduling-policy.md")
BEGIN, END = "<!-- fields: python -m shoal_client.policies.crds -->", "<!-- end of fields -->"
KEPT = ("type", "description", "enum", "pattern", "format", "required", "minLength", "maxLength", "minimum",
        "maximum", "maxItems", "minItems")  # fmt: skip


def column(name: str, path: str, kind: str = "string", wide: bool = False) -> dict[str, Any]:
    """A printer column of `kubectl get`; `wide` ones appear with -o wide."""
    return {"name": name, "type": kind, "jsonPath": path, **({"priority": 1} if wide else {})}


def _condition(kind: str) -> str:
    return f".status.conditions[?(@.type=='{kind}')].status"


AGE = column("Age", ".metadata.creationTimestamp", "date")
POLICY_COLUMNS = (
    column("Mode", ".spec.mode"),
    column("Canary", ".spec.canaryPercent", "integer"),
    column("In force", ".status.mode"),
    column("Policy", ".status.policyVersion"),
    column("Ready", _condition("Ready")),
    column("Degraded", _condition("Degraded"), wide=True),
    column("Digest", ".status.policyDigest", wide=True),
    AGE,
)
MEMBERSHIP_COLUMNS = (
    column("Cluster", ".spec.clusterName"),
    column("Round", ".status.round", "integer"),
    column("Spent", ".status.epsilonSpent", "number"),
    column("Left", ".status.epsilonLeft", "number"),
    column("Policy", ".status.policyVersion"),
    column("Ready", _condition("Ready")),
    column("Digest", ".status.policyDigest", wide=True),
    AGE,
)


def structural(model: type[ApiModel]) -> dict[str, Any]:
    """A model as a structural OpenAPI v3 schema."""
    schema = model.model_json_schema(by_alias=True)
    return _clean(schema, schema.get("$defs", {}))


def _clean(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    node = _resolved(node, definitions)
    result = {key: node[key] for key in KEPT if key in node}
    if "description" in result:
        result["description"] = " ".join(result["description"].split())
    if "const" in node:
        result["enum"] = [node["const"]]
    default = node.get("default")
    if node["type"] == "object" and "properties" in node and default is not None:
        result["default"] = _defaults(node, default)
    elif isinstance(default, bool | int | float) or (isinstance(default, str) and default):
        result["default"] = default
    if "properties" in node:
        result["properties"] = {name: _clean(p, definitions) for name, p in node["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            result[key] = _clean(node[key], definitions)
    own = {key: value for key, value in node.items() if key.startswith("x-kubernetes-")}
    return result | own | _floor(node)


def _floor(node: Mapping[str, Any]) -> dict[str, Any]:
    """A fractional minimum as a rule too: kube-apiserver v1.36.2 cuts it to a whole number for whole values.

    So a minimum of 0.001 alone lets 0 pass, which the client would find invalid.
    """
    least = node.get("minimum")
    if node["type"] != "number" or least is None or float(least).is_integer():
        return {}
    return {RULES: [{"rule": f"self >= {least}", "message": f"must be at least {least:g}"}]}


def _defaults(node: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
    """An object's default: empty, so that those inside apply; but CEL rules are run on it as it is."""
    if RULES not in node:
        return {}
    return {name: value for name, value in default.items() if isinstance(value, bool | int | float)}


def _resolved(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    """A node with its reference and its `X or null` replaced by what they stand for; its own keys win."""
    while "$ref" in node or "anyOf" in node:
        rest = {key: value for key, value in node.items() if key not in ("$ref", "anyOf")}
        if "$ref" in node:
            target = definitions[node["$ref"].rpartition("/")[2]]
        else:
            (target,) = (choice for choice in node["anyOf"] if choice.get("type") != "null")
        node = {**target, **rest}
    return node


def definition(
    kind: str,
    plural: str,
    short: tuple[str, ...],
    columns: tuple[dict[str, Any], ...],
    spec: type[ApiModel],
    status: type[ApiModel],
) -> dict[str, Any]:
    """One CustomResourceDefinition: cluster-scoped, one version, status as a subresource."""
    root = {
        "description": " ".join((spec.__doc__ or "").split()),
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural(spec),
            "status": structural(status),
        },
    }
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": root},
        "subresources": {"status": {}},
        "additionalPrinterColumns": list(columns),
    }
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {**names, "shortNames": list(short), "categories": ["shoal"]},
            "scope": "Cluster",
            "conversion": {"strategy": "None"},
            "versions": [version],
        },
    }


def definitions() -> dict[str, dict[str, Any]]:
    """Every CustomResourceDefinition by its file name."""
    return {
        f"{POLICIES_PLURAL}.yaml": definition(
            POLICY_KIND,
            POLICIES_PLURAL,
            ("spol",),
            POLICY_COLUMNS,
            SchedulingPolicySpec,
            SchedulingPolicyStatus,
        ),
        f"{MEMBERSHIPS_PLURAL}.yaml": definition(
            MEMBERSHIP_KIND,
            MEMBERSHIPS_PLURAL,
            ("fedm",),
            MEMBERSHIP_COLUMNS,
            FederationMembershipSpec,
            FederationMembershipStatus,
        ),
    }


def rendered() -> dict[str, str]:
    """Every file's text by its name."""
    import yaml  # type: ignore[import-untyped]

    return {
        name: HEADER + yaml.safe_dump(crd, sort_keys=False, width=110) for name, crd in definitions().items()
    }


def reference() -> str:
    """Every field of a SchedulingPolicy's spec as a Markdown table."""
    lines = [
        "| field | values | default | meaning |",
        "|---|---|---|---|",
        *_rows(structural(SchedulingPolicySpec)),
    ]
    return "\n".join(lines) + "\n"


def _rows(schema: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, node in schema.get("properties", {}).items():
        path, element = prefix + name, node.get("items", node)
        default = node.get("default")
        if node["type"] != "object" or "properties" not in node:
            shown = (
                ""
                if default is None
                else f"`{str(default).lower() if default in (True, False) else default}`"
            )
            yield f"| `{path}` | {_values(node)} | {shown} | {node.get('description', '')} |"
        elif node.get("description"):
            yield f"| **`{path}`** | | | {node['description']} |"
        yield from _rows(element, f"{path}[]." if "items" in node else f"{path}.")


def _values(node: Mapping[str, Any]) -> str:
    if "enum" in node:
        return " ".join(f"`{value}`" for value in node["enum"])
    if "minimum" in node:
        return f"{node['type']}, {node['minimum']:g} to {node['maximum']:g}"
    return "map of strings" if "additionalProperties" in node else str(node["type"])


def main(folder: Path, page: Path | None = None) -> None:
    """Write the files into a folder, and the table of fields into a page, between its markers."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in rendered().items():
        (folder / name).write_text(text)
    if page is not None:
        before, _, rest = page.read_text().partition(BEGIN)
        page.write_text(f"{before}{BEGIN}\n{reference()}{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main(Path("deploy/crds"), PAGE)
