# SPDX-License-Identifier: Apache-2.0
"""Frames arrive as they were sent, in whatever pieces, and nonsense is never taken for one."""

from __future__ import annotations

import socket
import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_client.training.remote import Broken, receive_frame, send_frame

HEADERS = st.dictionaries(
    st.text(max_size=8), st.integers() | st.text(max_size=8) | st.booleans(), max_size=4
)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.tuples(HEADERS, st.binary(max_size=5_000)), min_size=1, max_size=4))
def test_frames_arrive_as_they_were_sent(frames: list[tuple[dict[str, object], bytes]]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sending = threading.Thread(target=lambda: [send_frame(theirs, head, body) for head, body in frames])
        sending.start()
        assert [receive_frame(ours) for _ in frames] == frames
        sending.join()


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.binary(max_size=64))
def test_random_bytes_are_a_frame_or_broken(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(data)
        ours.settimeout(5)
        try:
            header, _ = receive_frame(ours)
        except Broken:
            return
        assert isinstance(header, dict)
