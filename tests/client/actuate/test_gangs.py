# SPDX-License-Identifier: Apache-2.0
"""Who belongs to a gang, and when it is complete."""

from __future__ import annotations

import pytest

from shoal_client.actuate.gangs import Gang, complete, gang_of, gang_size
from shoal_common.pods import PodRecord


def member(uid: str, size: str = "2", **record: object) -> PodRecord:
    labels, annotations = {"shoal.dev/gang": "job"}, {"shoal.dev/gang-size": size}
    return PodRecord(uid, uid=uid, labels=labels, annotations=annotations, **record)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["shoal.dev/gang", "scheduling.x-k8s.io/pod-group"])
def test_named_by_label(key: str) -> None:
    assert gang_of(PodRecord("p", namespace="n", labels={key: "g"})) == Gang("n", "g")


def test_named_by_volcanos_annotation_or_not_at_all() -> None:
    assert gang_of(PodRecord("p", annotations={"scheduling.k8s.io/group-name": "g"})) == Gang("default", "g")
    assert gang_of(PodRecord("p")) is None


@pytest.mark.parametrize(
    ("size", "read"), [("3", 3), ("0", None), ("-1", None), ("x", None), ("9" * 99, None)]
)
def test_sizes_that_make_no_sense_are_none(size: str, read: int | None) -> None:
    assert gang_size([member("a", size)]) == read


def test_only_live_members_count() -> None:
    """Finished and terminating pods are of an earlier run, and a pod that is listed twice is one pod."""
    assert complete([member("a"), member("b")])
    assert not complete([member("a"), member("a")])
    assert not complete([member("a"), member("b", phase="Failed")])
    assert not complete([member("a"), member("b", terminating=True)])
    assert not complete([member("a", ""), member("b", "")])
