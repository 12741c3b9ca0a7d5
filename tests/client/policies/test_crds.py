# SPDX-License-Identifier: Apache-2.0
"""The shipped CustomResourceDefinitions: current, structural, and an upgrade from an older one."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal_client.policies.crds import BEGIN, END, PAGE, definitions, main, reference, rendered, structural
from shoal_client.policies.spec import SchedulingPolicySpec, read_spec
from shoal_simulations.control_plane.api import ApiServer
from shoal_simulations.control_plane.failures import ApiError

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy/crds"
NAMES = sorted(definitions())


def shipped(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((FOLDER / name).read_text()))


def nodes(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from nodes(below, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes(schema[key], f"{path}[]")


def schema_of(crd: Mapping[str, Any]) -> Any:
    return crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def policy(name: str, **spec: Any) -> dict[str, Any]:
    head = {"apiVersion": "shoal.dev/v1alpha1", "kind": "SchedulingPolicy", "metadata": {"name": name}}
    return {**head, "spec": spec}


def test_the_files_are_what_the_models_say(tmp_path: Path) -> None:
    main(tmp_path)
    assert sorted(f.name for f in FOLDER.iterdir()) == NAMES
    for name, text in rendered().items():
        assert (FOLDER / name).read_text() == text == (tmp_path / name).read_text()


@pytest.mark.parametrize("name", NAMES)
def test_the_schema_is_structural_and_every_field_of_a_spec_is_bounded(name: str) -> None:
    for path, node in nodes(schema_of(shipped(name))):
        assert node["type"] in ("object", "array", "string", "number", "integer", "boolean"), path
        assert not {"$ref", "anyOf", "title", "const"} & set(node), path
        if path.startswith(".spec.") and node["type"] in ("number", "integer"):
            assert {"minimum", "maximum"} <= set(node), path
        if path.startswith(".spec.") and node["type"] == "array":
            assert "maxItems" in node, path


@pytest.mark.parametrize("name", NAMES)
def test_status_columns_names_and_conversion(name: str) -> None:
    spec = shipped(name)["spec"]
    (version,) = spec["versions"]
    assert version["subresources"] == {"status": {}}
    assert spec["conversion"] == {"strategy": "None"}
    assert spec["names"]["shortNames"]
    assert spec["names"]["categories"] == ["shoal"]
    assert {"Ready", "Age"} <= {c["name"] for c in version["additionalPrinterColumns"]}
    conditions = schema_of(shipped(name))["properties"]["status"]["properties"]["conditions"]
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]


def test_defaults_of_the_definition_are_those_of_the_models() -> None:
    with ApiServer() as server:
        server.create("customresourcedefinitions", shipped("schedulingpolicies.yaml"))
        made = server.create("schedulingpolicies", policy("a"))
    assert made["spec"]["mode"] == "Shadow"
    assert made["spec"]["objectives"]["qos"] == 0.4
    assert made["spec"]["actions"]["replicas"]["enabled"] is False
    from_server = read_spec(SchedulingPolicySpec, "SchedulingPolicy", made)
    assert from_server == SchedulingPolicySpec()


def test_case_63_an_old_definition_is_upgraded_and_its_objects_stay_valid() -> None:
    new = shipped("schedulingpolicies.yaml")
    old = copy.deepcopy(new)
    spec = schema_of(old)["properties"]["spec"]
    for name in ("drift", "guardrails", "exploration", "priority"):
        del spec["properties"][name]
    del spec["x-kubernetes-validations"]
    with ApiServer() as server:
        server.create("customresourcedefinitions", old)
        server.create("schedulingpolicies", policy("a", mode="Active", scoreScale=100))
        server.patch("customresourcedefinitions", new["metadata"]["name"], {"spec": new["spec"]})
        kept = server.get("schedulingpolicies", "a")
        assert (kept["spec"]["mode"], kept["spec"]["scoreScale"]) == ("Active", 100)
        assert read_spec(SchedulingPolicySpec, "SchedulingPolicy", kept).guardrails.enabled
        changed = server.patch("schedulingpolicies", "a", {"spec": {"priority": 5}})
        assert changed["spec"]["priority"] == 5
        with pytest.raises(ApiError):
            server.patch("schedulingpolicies", "a", {"spec": {"priority": 5000}})
        stored = server.get("customresourcedefinitions", new["metadata"]["name"])["spec"]
        assert stored["conversion"] == {"strategy": "None"}


def test_the_table_of_the_page_is_what_the_models_say() -> None:
    page = (ROOT / PAGE).read_text()
    assert page.partition(BEGIN)[2].partition(END)[0] == f"\n{reference()}"


def test_a_fractional_minimum_is_a_rule_too() -> None:
    """kube-apiserver compares a whole value with a minimum cut to a whole number: 0 passed 0.001."""
    spec = structural(SchedulingPolicySpec)["properties"]
    epsilon = spec["privacy"]["properties"]["epsilon"]
    rules = epsilon["x-kubernetes-validations"]
    assert rules == [{"rule": "self >= 0.001", "message": "must be at least 0.001"}]
    assert "x-kubernetes-validations" not in spec["scoreScale"]
