# SPDX-License-Identifier: Apache-2.0
"""The rounds of a federation over any Flower Grid: in process, simulated by Ray, or a real SuperLink.

A round: choose the cohort, send the model, take replies as they come, admit, add in fixed order, checkpoint.
Flower's own strategies cannot do it: one bad reply ends their run, they wait for ever for missing nodes,
keep no checkpoint and begin again at round 1.
"""

from __future__ import annotations

import math
import random
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from shoal_common.errors import Transient
from shoal_common.wire import (
    HELLO,
    PROTOCOL,
    TRAIN,
    Arrays,
    Instruction,
    Reply,
    WireError,
    decode_hello,
    decode_reply,
    encode_instruction,
    layout_of,
    pack,
)
from shoal_server.admission import Admission, Reason, Refused
from shoal_server.aggregate.mean import OrderedMean
from shoal_server.checkpoint import Checkpoint, Checkpoints
from shoal_server.events import (
    Admitted,
    Ending,
    Event,
    Outcome,
    Refusal,
    RoundEnded,
    RoundRecord,
    RoundStarted,
    RunEnded,
    RunStarted,
    Sink,
)
from shoal_server.settings import Settings

_POLL_SECONDS: Final = (
    0.02,
    0.5,
)  # between looks at a Grid that answers at once, growing while nothing comes
_HELLO_SECONDS: Final = 30.0
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")  # as Kubernetes names things


class Stopped(Exception):
    """Someone asked the run to stop; the round in progress is abandoned."""


@dataclass(slots=True)
class _Tally:
    """What has come of a round so far."""

    admitted: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    spent: list[str] = field(default_factory=list)
    epsilon: dict[str, float] = field(default_factory=dict)


def _ignore(_: Event) -> None:
    """The sink of a run that nobody watches."""


@final
class Federation:
    """One run: `Federation(settings, initial, schema_hash).run(grid)`.

    `sink` gets typed events as they happen; setting `stop` ends the run at the next reply. Either way, and on
    Ctrl-C, the checkpoint of the last full round stands, and the next run of the same settings goes on there.
    """

    def __init__(
        self,
        settings: Settings,
        initial: Arrays,
        schema_hash: str,
        sink: Sink = _ignore,
        stop: threading.Event | None = None,
    ) -> None:
        self._settings, self._schema, self._sink = settings, schema_hash, sink
        self._stop = stop or threading.Event()
        self._weights = settings.public_weights()
        self._layout = layout_of(initial)
        self._run = settings.digest(schema_hash, initial)
        self._roster: dict[int, str] = {}  # node id -> cluster; "" for a node that was refused
        self._store = None
        if settings.directory is not None:
            self._store = Checkpoints(settings.directory, self._run, settings.keep_checkpoints)
        self._state = (self._store.latest() if self._store else None) or Checkpoint(0, _frozen(initial), ())
        self._spent: set[str] = set()  # clusters that have no budget left
        for record in self._state.history:
            self._note_spent(record)

    def run(self, grid: Grid) -> Outcome:
        """All rounds that are left; raises `Transient` where too few clusters join in time."""
        first = self._state.round + 1
        self._sink(RunStarted(first, self._settings.rounds))
        ending = Ending.COMPLETED
        try:
            for number in range(first, self._settings.rounds + 1):
                if self._round(grid, number):
                    ending = Ending.SPENT
                    break
        except (Stopped, KeyboardInterrupt):
            ending = Ending.STOPPED
        outcome = Outcome(ending, self._state.round, self._state.arrays, self._state.history)
        self._sink(RunEnded(outcome))
        return outcome

    def _round(self, grid: Grid, number: int) -> bool:
        """Run one round and keep it; True where every known cluster is spent."""
        started = time.perf_counter()
        cohort = self._cohort(grid, number)
        self._sink(RoundStarted(number, cohort))
        mean = OrderedMean(cohort, self._weights, self._layout.size)
        tally = self._collect(grid, number, cohort, mean)
        void, arrays = self._decide(tally, mean)
        record = RoundRecord(
            number,
            cohort,
            tuple(sorted(tally.admitted)),
            dict(sorted(tally.refused.items())),
            tuple(sorted(tally.spent)),
            dict(sorted(tally.epsilon.items())),
            time.perf_counter() - started,
            void,
        )
        self._state = Checkpoint(number, arrays, (*self._state.history, record))
        if self._store:
            self._store.save(self._state)
        self._sink(RoundEnded(record, arrays))
        self._note_spent(record)
        return self._spent >= set(filter(None, self._roster.values()))

    def _note_spent(self, record: RoundRecord) -> None:
        self._spent = (self._spent | set(record.spent)) - set(record.admitted)

    def _decide(self, tally: _Tally, mean: OrderedMean) -> tuple[str | None, Arrays]:
        """The new model, or the reason why the round is void and the model stays."""
        if len(tally.admitted) < self._settings.quorum:
            return f"quorum: {len(tally.admitted)} of {self._settings.quorum}", self._state.arrays
        result = mean.result()
        if result is None:
            return "zero weight", self._state.arrays
        return None, _frozen(self._layout.unpack(result))

    def _collect(self, grid: Grid, number: int, cohort: Sequence[str], mean: OrderedMean) -> _Tally:
        """Send the round's instruction and take the replies as they come."""
        nodes = {cluster: node for node, cluster in self._roster.items() if cluster}
        content = encode_instruction(Instruction(self._run, number, self._schema, self._state.arrays))
        timeout = self._settings.round_timeout_seconds or None
        messages = [
            Message(content, nodes[cluster], TRAIN, ttl=timeout, group_id=str(number)) for cluster in cohort
        ]
        model, bound = pack(self._state.arrays), self._settings.max_update_norm(self._layout.size)
        gate = Admission(number, self._schema, cohort, self._layout, model, bound)
        tally = _Tally()
        for message in self._replies(grid, messages, timeout):
            cluster = self._roster.get(message.metadata.src_node_id, "")
            try:
                self._take(cluster, message, gate, mean, tally, number)
            except Refused as refusal:
                self._refuse(number, cluster, refusal, tally, mean)
        for cluster in sorted(set(cohort) - {*tally.admitted, *tally.spent, *tally.refused}):
            self._refuse(number, cluster, Refused(Reason.TIMEOUT, f"no reply in {timeout} s"), tally, mean)
        return tally

    def _take(
        self, cluster: str, message: Message, gate: Admission, mean: OrderedMean, tally: _Tally, number: int
    ) -> None:
        """Admit one reply, or raise `Refused`."""
        reply = _reply(message)
        vector = gate.screen(cluster, reply)
        if vector is None:
            tally.spent.append(cluster)
            mean.skip(cluster)
            return
        mean.offer(cluster, vector)
        tally.admitted.append(cluster)
        if reply.epsilon is not None:
            tally.epsilon[cluster] = reply.epsilon
        self._sink(Admitted(number, cluster, reply.epsilon))

    def _refuse(self, number: int, cluster: str, why: Refused, tally: _Tally, mean: OrderedMean) -> None:
        if cluster and cluster not in tally.admitted and cluster not in tally.spent:
            tally.refused.setdefault(cluster, why.reason.value)
            mean.skip(cluster)
        self._sink(Refusal(number, cluster, why.reason.value, why.detail))

    def _cohort(self, grid: Grid, number: int) -> tuple[str, ...]:
        """Who is asked: those of a broken-off round again, else a seeded draw from the sorted names.

        Clusters whose budget is spent are asked beside the draw: they only receive, and take nobody's place.
        """
        earlier = self._store.cohort(number) if self._store else None
        wanted = set(earlier or ())
        known = self._join(grid, wanted)
        if earlier and wanted <= set(known):
            return earlier
        spent = self._spent & set(known)
        able = [cluster for cluster in known if cluster not in spent]
        size = max(math.ceil(self._settings.fraction * len(able)), min(self._settings.quorum, len(able)))
        draw = random.Random(f"{self._settings.seed}/{number}").sample(able, size)
        cohort = tuple(sorted({*draw, *spent}))
        if self._store:
            self._store.save_cohort(number, cohort)
        return cohort

    def _join(self, grid: Grid, wanted: set[str]) -> list[str]:
        """Greet new nodes until enough clusters are here; their names, sorted."""
        deadline = time.monotonic() + self._settings.join_timeout_seconds
        while True:
            present = set(grid.get_node_ids())
            self._roster = {node: name for node, name in self._roster.items() if node in present}
            self._greet(grid, sorted(present - self._roster.keys()))
            known = sorted(filter(None, self._roster.values()))
            enough = len(known) >= self._settings.min_clusters
            if enough and (wanted <= set(known) or time.monotonic() > deadline):
                return known
            if time.monotonic() > deadline:
                raise Transient(
                    f"{len(known)} of {self._settings.min_clusters} clusters joined within "
                    f"{self._settings.join_timeout_seconds:.0f} s"
                )
            self._pause(_POLL_SECONDS[1])

    def _greet(self, grid: Grid, nodes: Sequence[int]) -> None:
        """Ask unknown nodes who they are.

        Refused ones are not asked again while they stay connected, except those whose client raised: it may
        have been its start, or a worker that died.
        """
        messages = [Message(RecordDict(), node, HELLO, ttl=_HELLO_SECONDS) for node in nodes]
        for message in self._replies(grid, messages, _HELLO_SECONDS):
            node, name = message.metadata.src_node_id, ""
            try:
                name = self._welcome(message)
            except Refused as refusal:
                self._sink(Refusal(0, f"node {node}", refusal.reason.value, refusal.detail))
                if refusal.reason is Reason.ERROR:
                    continue
            self._roster[node] = name

    def _welcome(self, message: Message) -> str:
        """The cluster that a new node speaks for, if it may."""
        if message.has_error():
            raise Refused(Reason.ERROR, message.error.reason or "no reason given")
        try:
            hello = decode_hello(message.content)
        except WireError as error:
            raise Refused(Reason.MALFORMED, error.detail) from error
        if hello.protocol != PROTOCOL:
            raise Refused(Reason.SCHEMA, f"{hello.cluster}: protocol {hello.protocol}, not {PROTOCOL}")
        if hello.schema_hash != self._schema:
            raise Refused(
                Reason.SCHEMA, f"{hello.cluster}: {hello.schema_hash[:12]}, not {self._schema[:12]}"
            )
        if hello.cluster and not _NAME.fullmatch(hello.cluster):
            raise Refused(Reason.MALFORMED, f"{hello.cluster!r} is no name of a cluster")
        if not hello.cluster or hello.cluster in self._roster.values():
            raise Refused(Reason.DUPLICATE, f"the name {hello.cluster!r} is empty or taken")
        return hello.cluster

    def _replies(self, grid: Grid, messages: Sequence[Message], timeout: float | None) -> Iterator[Message]:
        """Push and yield replies as they come, until all have come or the time is up."""
        if not messages:
            return
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        waiting = set(grid.push_messages(messages))
        pause = _POLL_SECONDS[0]
        while waiting and time.monotonic() < deadline:
            replies = list(grid.pull_messages(list(waiting)))
            for message in replies:
                waiting.discard(message.metadata.reply_to_message_id)
                yield message
            pause = _POLL_SECONDS[0] if replies else min(2 * pause, _POLL_SECONDS[1])
            self._pause(0 if replies else min(pause, max(0, deadline - time.monotonic())))

    def _pause(self, seconds: float) -> None:
        """Wait, and end the run where someone has asked for it."""
        if self._stop.wait(seconds) if seconds else self._stop.is_set():
            raise Stopped


def _reply(message: Message) -> Reply:
    if message.has_error():
        raise Refused(Reason.ERROR, message.error.reason or "no reason given")
    try:
        return decode_reply(message.content)
    except WireError as error:
        raise Refused(Reason.MALFORMED, error.detail) from error


def _frozen(arrays: Arrays) -> Arrays:
    """The same arrays, read-only: events hand the model out."""
    for array in arrays.values():
        array.flags.writeable = False
    return arrays
