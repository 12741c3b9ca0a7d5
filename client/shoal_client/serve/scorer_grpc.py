# SPDX-License-Identifier: Apache-2.0
"""The gRPC scorer on a unix socket: the extender's decisions for a plugin in the scheduler's own pod.

The messages and what a plugin does with them are in deploy/proto/shoal/v1alpha1/scorer.proto.
"""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import msgspec

from shoal_client.metrics import EXTENDER_REQUESTS
from shoal_client.serve.payloads import Candidates, read_pod_json
from shoal_client.serve.scorer_messages import METHOD, PACKAGE, SERVICE, ScoreReply, ScoreRequest
from shoal_client.serve.service import DecisionService
from shoal_client.socket_path import make_way
from shoal_common.errors import InputError

THREADS = 4
LARGEST_MESSAGE = 16 * 1024 * 1024
VERB = "score"


@final
class ScorerServer:
    """Serves `DecisionService.prioritize` on a unix socket that its owner and group may use."""

    def __init__(self, service: DecisionService, path: Path) -> None:
        """Bind the socket at once, in place of one that an earlier process left.

        Raises:
            InputError: it cannot be made.
        """
        import grpc

        self._service, self._path, self._grpc = service, path, grpc
        limits = [("grpc.max_receive_message_length", LARGEST_MESSAGE)]
        self._server = grpc.server(ThreadPoolExecutor(THREADS, "grpc"), options=limits)
        handler = grpc.unary_unary_rpc_method_handler(
            self._score, ScoreRequest.FromString, ScoreReply.SerializeToString
        )
        handlers = grpc.method_handlers_generic_handler(f"{PACKAGE}.{SERVICE}", {METHOD: handler})
        self._server.add_generic_rpc_handlers((handlers,))
        try:
            make_way(path)
            self._server.add_insecure_port(f"unix:{path.absolute()}")
            os.chmod(path, 0o660)
        except (OSError, RuntimeError) as error:
            why = f": {error.strerror}" if isinstance(error, OSError) and error.strerror else ""
            remedy = "give a path of at most 107 bytes in a directory that can be written"
            raise InputError(str(path), "--grpc-socket", f"cannot be bound{why}", remedy) from error

    def start(self) -> None:
        """Serve from now on."""
        self._server.start()

    def stop(self) -> None:
        """Answer what was asked, then end and remove the socket."""
        self._server.stop(grace=1.0).wait(2.0)
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _score(self, request: Any, context: Any) -> Any:
        try:
            asked = Candidates(read_pod_json(request.pod_json), list(request.node_names))
        except (InputError, msgspec.DecodeError) as error:
            EXTENDER_REQUESTS.labels(VERB, "400").inc()
            context.abort(self._grpc.StatusCode.INVALID_ARGUMENT, str(error))
        pending, left = self._service.prioritize(asked, "grpc"), context.time_remaining()
        if left is not None:
            pending = replace(pending, seconds=min(pending.seconds, left))
        found = pending.wait()
        EXTENDER_REQUESTS.labels(VERB, "200").inc()
        return ScoreReply(
            scores=found.scores,
            scale=found.scale,
            neutral=found.reason is not None,
            reason=found.reason or "",
            policy_digest=found.policy,
        )
