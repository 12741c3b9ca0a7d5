# SPDX-License-Identifier: Apache-2.0
"""Lists in pages, and what a watch sends for a change under its selectors.

Source: apiserver pkg/endpoints/handlers/get.go, pkg/storage/continue.go, pkg/storage/cacher/cache_watcher.go.
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from shoal_simulations.control_plane.failures import TOO_OLD_CONTINUE, ApiError, bad_request, expired, invalid
from shoal_simulations.control_plane.query import Test, field_test, label_test
from shoal_simulations.control_plane.resources import Resource
from shoal_simulations.control_plane.store import ADDED, DELETED, Change, Key, Store, Stored

INITIAL_END = "k8s.io/initial-events-end"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a resource a list or a watch is about; an empty namespace is all of them."""

    resource: Resource
    namespace: str
    labels: Test
    fields: Test
    filtered: bool
    """Whether there is any selector."""

    @classmethod
    def of(cls, resource: Resource, namespace: str, query: Mapping[str, str]) -> Selection:
        """The selection of a request.

        Raises:
            ApiError: 400, a selector cannot be read.
        """
        labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
        tests = label_test(labels), field_test(fields, resource)
        return cls(resource, namespace, *tests, filtered=bool(labels or fields))

    def holds(self, key: Key, stored: Stored | None) -> bool:
        """Whether an object is in it."""
        if stored is None or (self.namespace and key[0] != self.namespace):
            return False
        return not self.filtered or (self.labels(stored.content) and self.fields(stored.content))


def version_of(query: Mapping[str, str]) -> int:
    """The asked resourceVersion; 0 when absent.

    Raises:
        ApiError: 400, it is no number.
    """
    text = query.get("resourceVersion", "")
    if text and not text.isdigit():
        why = f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        raise bad_request(f"invalid resource version: {why}")
    return int(text or 0)


def page(store: Store, selection: Selection, query: Mapping[str, str]) -> bytes:
    """The List object of a request.

    Raises:
        ApiError: 400, 410 (the continue token is too old) or 504 (a version of the future).
    """
    limit = _limit(query)
    token, start, exact = query.get("continue", ""), None, None
    asked = version_of(query)
    if token:
        exact, start = _read_token(token)
    elif asked and query.get("resourceVersionMatch") == "Exact":
        exact = asked
    with store.lock:
        revision = store.revision if exact is None else exact
        if asked > store.revision:
            raise too_large(asked, store.revision)
        items = store.items(selection.resource) if exact is None else _past(store, selection, exact)
    if start is not None:
        items = items[bisect_right(items, start, key=lambda item: item[0]) :]
    if selection.filtered or selection.namespace:
        items = [item for item in items if selection.holds(*item)]
    kept = items[:limit] if limit else items
    metadata: dict[str, str | int] = {"resourceVersion": str(revision)}
    if len(items) > len(kept):
        metadata["continue"] = _write_token(revision, kept[-1][0])
        if not selection.filtered:
            metadata["remainingItemCount"] = len(items) - len(kept)
    return list_bytes(selection.resource, metadata, [stored for _, stored in kept])


def _limit(query: Mapping[str, str]) -> int:
    """The size of a page; 0 is all. A list at version 0 comes from the watch cache, which knows no pages."""
    text = query.get("limit") or "0"
    if not text.isdigit():
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return 0 if query.get("resourceVersion") == "0" and not query.get("continue") else int(text)


def list_bytes(resource: Resource, metadata: Mapping[str, str | int], items: list[Stored]) -> bytes:
    """A List as it is sent; items of built-in kinds carry no kind of their own."""
    head = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": metadata}
    raw = [stored.raw for stored in items]
    if not resource.custom:
        lead = b'{"apiVersion":"%s","kind":"%s",' % (resource.api_version.encode(), resource.kind.encode())
        raw = [b"{" + r.removeprefix(lead) if r.startswith(lead) else r for r in raw]
    return msgspec.json.encode(head)[:-1] + b',"items":[' + b",".join(raw) + b"]}"


def _past(store: Store, selection: Selection, revision: int) -> list[tuple[Key, Stored]]:
    try:
        return store.items_at(selection.resource, revision)
    except ApiError as error:
        raise expired(TOO_OLD_CONTINUE) from error


def check_options(query: Mapping[str, str]) -> None:
    """Refuse initial events without the match that they need.

    Raises:
        ApiError: 422.
    """
    if query.get("sendInitialEvents") and query.get("resourceVersionMatch") != "NotOlderThan":
        why = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        raise invalid("ListOptions.meta.k8s.io", "", ("resourceVersionMatch", why))


def too_large(asked: int, current: int) -> ApiError:
    """504: a version that is still to come."""
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    message = f"Too large resource version: {asked}, current: {current}"
    return ApiError(504, "Timeout", message, {"causes": [cause], "retryAfterSeconds": 1})


def _write_token(revision: int, last: Key) -> str:
    body = {"v": "meta.k8s.io/v1", "rv": revision, "start": "/".join(last)}
    return base64.urlsafe_b64encode(msgspec.json.encode(body)).rstrip(b"=").decode()


def _read_token(token: str) -> tuple[int, Key]:
    try:
        body = msgspec.json.decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        namespace, _, name = body["start"].rpartition("/")
        return int(body["rv"]), (namespace, name)
    except (binascii.Error, msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise bad_request(f"invalid continue token: continue key is not valid: {error}") from error


def event(selection: Selection, change: Change) -> bytes | None:
    """The watch event for a change, None where the selection did not and does not hold the object.

    An object that leaves the selection is DELETED for this watch, one that enters it is ADDED.
    """
    was = selection.holds(change.key, change.previous)
    now = change.kind != DELETED and selection.holds(change.key, change.current)
    if now:
        return line(change.kind if was else ADDED, change.current.raw)
    if not was or change.previous is None:
        return None
    content = change.previous.content
    metadata = {**content["metadata"], "resourceVersion": str(change.revision)}
    return line(DELETED, msgspec.json.encode({**content, "metadata": metadata}))


def line(kind: str, raw: bytes) -> bytes:
    """One event of a watch stream."""
    return b'{"type":"%s","object":%s}\n' % (kind.encode(), raw)


def bookmark(resource: Resource, revision: int, *, initial_end: bool = False) -> bytes:
    """A BOOKMARK event: nothing but the version; after the initial events with their annotation."""
    metadata: dict[str, object] = {"resourceVersion": str(revision), "creationTimestamp": None}
    if initial_end:
        metadata["annotations"] = {INITIAL_END: "true"}
    empty = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
    return line("BOOKMARK", msgspec.json.encode(empty))
