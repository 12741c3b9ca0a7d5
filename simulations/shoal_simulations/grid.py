# SPDX-License-Identifier: Apache-2.0
"""Flower's Grid by function call: the same ServerApp, ClientApp and messages, without Ray or network.

`flwr.serverapp.Grid` is public; a ClientApp is a plain callable. What makes it cheap: all messages of a round
share the immutable bytes of the model, and a message runs when its reply is asked for, so that replies stream
and neither a deadline nor a stop waits for the whole cohort.
"""

from __future__ import annotations

import itertools
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, final

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from shoal_common.wire import describe_error

Scalar = bool | int | float | str
NodeConfig = Mapping[str, Scalar]
Client = Callable[[Message, Context], Message]

_FIRST_NODE = 1000
_RUN_ID = 1
CLIENT_RAISED = 2  # Flower's ErrorCode.CLIENT_APP_RAISED_EXCEPTION


def node_ids(clusters: Sequence[NodeConfig]) -> dict[int, NodeConfig]:
    """Node ids in the order of the cluster names."""
    ordered = sorted(clusters, key=lambda config: str(config["cluster"]))
    return {_FIRST_NODE + index: config for index, config in enumerate(ordered)}


def isolate(content: RecordDict) -> RecordDict:
    """The same content for one client alone: new records and arrays over the shared immutable bytes."""
    return RecordDict({name: _own(record) for name, record in content.items()})


def _own(record: ArrayRecord | MetricRecord | ConfigRecord) -> ArrayRecord | MetricRecord | ConfigRecord:
    own = record.copy()
    for name, value in own.items():
        if isinstance(value, Array):
            twin = Array.__new__(Array)
            twin.__dict__.update(value.__dict__)
            own.__dict__["_data"][name] = twin
        elif isinstance(value, list):
            own.__dict__["_data"][name] = list(value)
    return own


@final
class Host:
    """The nodes of one process: a ClientApp and the context of each of its clusters."""

    def __init__(self, client: Client, nodes: Mapping[int, NodeConfig], run_config: NodeConfig) -> None:
        self._client = client
        self._contexts = {
            node: Context(_RUN_ID, node, dict(config), RecordDict(), dict(run_config))
            for node, config in nodes.items()
        }

    def handle(self, message: Message) -> Message:
        """Run one message; what the client raises becomes an error reply."""
        context = self._contexts[message.metadata.dst_node_id]
        message.content = isolate(message.content)
        try:
            return self._client(message, context)
        except Exception as error:  # as Flower's runtimes do
            traceback.print_exc()
            cluster = str(context.node_config.get("cluster"))
            return Message(Error(CLIENT_RAISED, describe_error(cluster, error)), reply_to=message)


class Executor(Protocol):
    """Where messages run."""

    def submit(self, messages: Sequence[Message]) -> None:
        """Take messages; returns at once."""

    def collect(self) -> list[Message]:
        """Replies that are ready, after at most a short wait."""

    def close(self) -> None:
        """End whatever was started."""


@final
class Serial:
    """One process: the oldest message runs when a reply is asked for. An expired message never runs."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._queue: deque[Message] = deque()

    def submit(self, messages: Sequence[Message]) -> None:
        """Queue the messages."""
        self._queue.extend(messages)

    def collect(self) -> list[Message]:
        """Run one message."""
        while self._queue:
            message = self._queue.popleft()
            if message.metadata.created_at + message.metadata.ttl > time.time():
                return [self._host.handle(message)]
        return []

    def close(self) -> None:
        """Forget what has not run."""
        self._queue.clear()


@final
class LocalGrid(Grid):
    """A Grid over an executor; close it, or use it as a context manager."""

    def __init__(self, executor: Executor, nodes: Iterable[int]) -> None:
        # Message(...) refuses to be built without it; Flower's own simulation runner sets it likewise
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = _RUN_ID, 1, 1
        self._executor, self._nodes = executor, list(nodes)
        self._numbers = itertools.count(1)
        self._waiting: dict[str, float] = {}  # message id -> when its time is up
        self._done: dict[str, Message] = {}
        self._run = Run.create_empty(_RUN_ID)

    def __enter__(self) -> LocalGrid:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the executor and its processes."""
        self._executor.close()

    def set_run(self, run: Run) -> None:
        """Flower's interface; this Grid has one run."""
        self._run = run

    @property
    def run(self) -> Run:
        """The one run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Flower's older way to make a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """The nodes, in the order of their cluster names."""
        return list(self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Number the messages and submit them; replies that came too late are dropped here."""
        now = time.time()
        self._waiting = {name: expiry for name, expiry in self._waiting.items() if expiry > now}
        self._done = {name: reply for name, reply in self._done.items() if name in self._waiting}
        batch = list(messages)
        for message in batch:
            # set by every Grid in Flower; the property has no setter
            message.metadata.__dict__["_message_id"] = f"message-{next(self._numbers)}"
            self._waiting[message.metadata.message_id] = message.metadata.created_at + message.metadata.ttl
        self._executor.submit(batch)
        return [message.metadata.message_id for message in batch]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies to these messages that are ready; one process runs one message to have one."""
        for reply in self._executor.collect():
            if reply.metadata.reply_to_message_id in self._waiting:
                self._done[reply.metadata.reply_to_message_id] = reply
        asked = set(message_ids)
        ready = [name for name in self._done if name in asked]
        for name in ready:
            del self._waiting[name]
        return [self._done.pop(name) for name in ready]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push, then pull until all replies are here or the time is up."""
        waiting = set(self.push_messages(messages))
        deadline = None if timeout is None else time.monotonic() + timeout
        replies: list[Message] = []
        while waiting and (deadline is None or time.monotonic() < deadline):
            for reply in self.pull_messages(waiting):
                waiting.discard(reply.metadata.reply_to_message_id)
                replies.append(reply)
        return replies
