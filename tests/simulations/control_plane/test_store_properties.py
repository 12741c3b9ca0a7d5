# SPDX-License-Identifier: Apache-2.0
"""Any order of writes: old versions can be listed as they were, and changes lead to the present."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_simulations.control_plane.resources import BUILT_IN
from shoal_simulations.control_plane.store import DELETED, Key, Store

PODS, NODES = BUILT_IN[0], BUILT_IN[1]
State = dict[Key, int]

Write = tuple[str, str, int]
writes = st.lists(
    st.tuples(st.sampled_from(["create", "replace", "remove"]), st.sampled_from("abcd"), st.integers(0, 9)),
    max_size=30,
)


def perform(store: Store, state: State, write: Write) -> None:
    act, name, value = write
    key = ("ns", name)
    content = {"metadata": {"name": name}, "value": value}
    if act == "create" and key not in state:
        store.create(PODS, key, content)
        state[key] = value
    elif act == "replace" and key in state:
        store.replace(PODS, key, content)
        state[key] = value
    elif act == "remove" and key in state:
        store.remove(PODS, key)
        del state[key]


@settings(deadline=None, derandomize=True, max_examples=60)
@given(writes)
def test_every_version_can_be_read_as_it_was(steps: list[Write]) -> None:
    store, state = Store(), State()
    versions = {store.revision: dict(state)}
    for step in steps:
        perform(store, state, step)
        store.create(NODES, ("", f"n{store.revision}"), {"metadata": {}})  # versions are shared by all kinds
        versions[store.revision] = dict(state)
    for version, then in versions.items():
        found = {key: stored.content["value"] for key, stored in store.items_at(PODS, version)}
        assert found == then
        assert list(found) == sorted(found)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(writes, writes)
def test_changes_lead_from_a_list_to_the_present(before: list[Write], after: list[Write]) -> None:
    store, state = Store(), State()
    for step in before:
        perform(store, state, step)
    version, followed = store.revision, dict(state)
    for step in after:
        perform(store, state, step)
    last = version
    for change in store.changes(PODS, version):
        assert change.revision > last
        last = change.revision
        if change.kind == DELETED:
            assert followed.pop(change.key) is not None
        else:
            followed[change.key] = change.current.content["value"]
    assert followed == state
