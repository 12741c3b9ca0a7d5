# SPDX-License-Identifier: Apache-2.0
"""DAGs from annotations and from Argo's labels."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_client.experience.workflow import ARGO_WORKFLOW, membership, workflows
from shoal_common.pods import PodRecord


def _task(name, depends_on="", **fields):
    annotations = {"shoal.dev/workflow": "etl", "shoal.dev/task": name, "shoal.dev/depends-on": depends_on}
    return PodRecord(name=f"etl-{name}-x1", uid=name, annotations=annotations, **fields)


def test_a_diamond():
    pods = [
        _task("load", phase="Succeeded", node_name="n"),
        _task("left", "load"),
        _task("right", " load , "),
        _task("join", "left,right,report"),
    ]
    (flow,) = workflows(pods).values()
    assert (flow.namespace, flow.name, flow.circular) == ("default", "etl", frozenset())
    assert flow.level == {"load": 0, "left": 1, "right": 1, "join": 2}
    assert set(flow.edges) == {("load", "left"), ("load", "right"), ("left", "join"), ("right", "join")}
    assert flow.ready == ("left", "right")
    assert flow.tasks["join"].unknown == ("report",)


def test_a_retry_replaces_its_task_and_namespaces_are_apart():
    pods = [
        _task("load", created_at=2.0, phase="Running", node_name="n"),
        _task("load", created_at=1.0, phase="Failed"),
        _task("load", namespace="other"),
    ]
    flows = workflows(pods)
    assert len(flows) == 2
    assert flows["default", "etl"].tasks["load"].started


def test_a_circle_is_told_and_what_stands_before_it_is_not_lost():
    (flow,) = workflows([_task("a"), _task("b", "a,c"), _task("c", "b"), _task("d", "c")]).values()
    assert flow.level == {"a": 0}
    assert flow.circular == {"b", "c", "d"}
    assert flow.ready == ("a",)


def test_argo_labels_tell_membership_and_no_edges():
    pod = PodRecord(name="wf-1", uid="u", labels={ARGO_WORKFLOW: "wf"})
    assert membership(pod) == "wf"
    (flow,) = workflows([pod]).values()
    assert flow.tasks["wf-1"].depends_on == ()
    assert membership(PodRecord(name="x")) is None


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20))
def test_levels_are_above_those_of_all_dependencies(edges):
    wanted = {n: {f"t{a}" for a, b in edges if b == n} for n in range(8)}
    (flow,) = workflows(_task(f"t{n}", ",".join(sorted(before))) for n, before in wanted.items()).values()
    assert set(flow.level) | flow.circular == set(flow.tasks)
    for name, level in flow.level.items():
        before = [flow.level[other] for other in flow.tasks[name].depends_on]
        assert level == (max(before) + 1 if before else 0)
    for name in flow.circular:
        assert flow.circular & set(flow.tasks[name].depends_on)
