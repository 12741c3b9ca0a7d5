# SPDX-License-Identifier: Apache-2.0
"""Workflows: which pods belong together and which wait for which, as their metadata tells.

    shoal.dev/workflow     annotation: the workflow's name within the namespace
    shoal.dev/task         annotation: the task's name; the pod's name where it is not set
    shoal.dev/depends-on   annotation: names of tasks, separated by commas

Argo Workflows labels its pods with `workflows.argoproj.io/workflow`: membership is read from there. A pod
does not say what it depends on (that stands in the Workflow object), so edges need the annotation; without it
a task has none, and nothing is guessed from names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from shoal_common.pods import PodRecord

WORKFLOW, TASK, DEPENDS_ON = "shoal.dev/workflow", "shoal.dev/task", "shoal.dev/depends-on"
ARGO_WORKFLOW: Final = "workflows.argoproj.io/workflow"


@dataclass(frozen=True, slots=True)
class Task:
    """One pod of a workflow."""

    name: str
    uid: str
    depends_on: tuple[str, ...]  # tasks of the same workflow that are known
    unknown: tuple[str, ...]  # named dependencies of which no pod is there (not yet, or no more)
    succeeded: bool
    started: bool


@dataclass(frozen=True, slots=True)
class Workflow:
    """A directed acyclic graph of tasks. `level` is the longest way from a task without dependencies.

    Tasks that wait for each other in a circle, and those behind them, have no level: they are in `circular`.
    """

    namespace: str
    name: str
    tasks: Mapping[str, Task]
    level: Mapping[str, int]
    circular: frozenset[str]

    @property
    def ready(self) -> tuple[str, ...]:
        """Tasks that have not started and all of whose dependencies are known to have succeeded."""
        return tuple(
            name
            for name, task in self.tasks.items()
            if not task.started
            and name not in self.circular
            and not task.unknown
            and all(self.tasks[other].succeeded for other in task.depends_on)
        )

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        """Pairs (dependency, task)."""
        return tuple((other, name) for name, task in self.tasks.items() for other in task.depends_on)


def membership(pod: PodRecord) -> str | None:
    """The name of the pod's workflow; None where it belongs to none."""
    return pod.annotations.get(WORKFLOW) or pod.labels.get(ARGO_WORKFLOW) or None


def workflows(pods: Iterable[PodRecord]) -> dict[tuple[str, str], Workflow]:
    """The workflows of these pods by namespace and name. Of pods of one task the last one counts."""
    members: dict[tuple[str, str], dict[str, PodRecord]] = {}
    for pod in sorted(pods, key=lambda p: (p.created_at, p.uid)):
        name = membership(pod)
        if name is not None:
            members.setdefault((pod.namespace, name), {})[pod.annotations.get(TASK, pod.name)] = pod
    return {key: _workflow(*key, tasks) for key, tasks in members.items()}


def _workflow(namespace: str, name: str, pods: Mapping[str, PodRecord]) -> Workflow:
    tasks = {task: _task(task, pod, pods) for task, pod in pods.items()}
    level = _levels(tasks)
    return Workflow(namespace, name, tasks, level, frozenset(tasks) - frozenset(level))


def _task(name: str, pod: PodRecord, pods: Mapping[str, PodRecord]) -> Task:
    wanted = (part.strip() for part in pod.annotations.get(DEPENDS_ON, "").split(","))
    named = tuple(dict.fromkeys(part for part in wanted if part))
    return Task(
        name=name,
        uid=pod.uid,
        depends_on=tuple(other for other in named if other in pods),
        unknown=tuple(other for other in named if other not in pods),
        succeeded=pod.phase == "Succeeded",
        started=bool(pod.node_name),
    )


def _levels(tasks: Mapping[str, Task]) -> dict[str, int]:
    """Levels of the tasks that are behind no circle (Kahn 1962)."""
    missing = {name: len(task.depends_on) for name, task in tasks.items()}
    behind: dict[str, list[str]] = {name: [] for name in tasks}
    for name, task in tasks.items():
        for other in task.depends_on:
            behind[other].append(name)
    level: dict[str, int] = {}
    front = [name for name, count in missing.items() if count == 0]
    depth = 0
    while front:
        level.update(dict.fromkeys(front, depth))
        following = []
        for name in front:
            for other in behind[name]:
                missing[other] -= 1
                if missing[other] == 0:
                    following.append(other)
        front, depth = following, depth + 1
    return level
