# SPDX-License-Identifier: Apache-2.0
"""The Flower ClientApp: a thin shim that hands a message to the cluster's trainer. No torch is imported here.

The node configuration names the cluster (`cluster`); the run configuration names the function that makes its
trainer (`trainer` = "module:function", called with both configurations). A trainer lives as long as its
process and is made again from its state on disk in the next one.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping
from typing import cast

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from shoal_client.train import RoundConfig, Trainer
from shoal_common.errors import BudgetExhausted, InputError, SchemaMismatch, ShoalError
from shoal_common.observation import schema_hash as compute_schema_hash
from shoal_common.wire import (
    HELLO_ACTION,
    Hello,
    decode_instruction,
    describe_error,
    encode_hello,
    encode_spent,
    encode_update,
)

Scalar = bool | int | float | str
Config = Mapping[str, Scalar]
MakeTrainer = Callable[[Config, Config], Trainer]
SCHEMA = compute_schema_hash()
CLIENT_RAISED = 2  # Flower's ErrorCode.CLIENT_APP_RAISED_EXCEPTION

_log = logging.getLogger("shoal.client")


def make_app() -> ClientApp:
    """A ClientApp with its own trainers, one per cluster."""
    trainers: dict[str, Trainer] = {}
    client = ClientApp()

    @client.query(HELLO_ACTION)
    def hello(message: Message, context: Context) -> Message:
        return Message(encode_hello(Hello(_cluster(context), SCHEMA)), reply_to=message)

    @client.train()
    def train(message: Message, context: Context) -> Message:
        cluster = _cluster(context)
        try:
            if cluster not in trainers:
                trainers[cluster] = load_trainer(context)
            return _train(cluster, trainers[cluster], message)
        except (ShoalError, OSError) as error:  # says in one line what is wrong; the other clusters go on
            _log.error("cluster %s: %s", cluster, error)
            return Message(Error(CLIENT_RAISED, describe_error(cluster, error)), reply_to=message)
        except Exception as error:  # whatever it is, the other clusters go on, and its text stays here
            _log.exception("cluster %s", cluster)
            return Message(Error(CLIENT_RAISED, describe_error(cluster, error)), reply_to=message)

    return client


def _train(cluster: str, trainer: Trainer, message: Message) -> Message:
    instruction = decode_instruction(message.content)
    if instruction.schema_hash != SCHEMA:
        raise SchemaMismatch(f"the server speaks schema {instruction.schema_hash[:12]}, not {SCHEMA[:12]}")
    config = RoundConfig(instruction.round, instruction.run, instruction.schema_hash)
    try:
        content = encode_update(trainer.round(instruction.arrays, config))
    except BudgetExhausted:
        content = encode_spent(cluster, instruction.round, instruction.schema_hash)
    return Message(content, reply_to=message)


def load_trainer(context: Context) -> Trainer:
    """Call the function that the run configuration names; `InputError` where there is none."""
    reference = str(context.run_config.get("trainer", ""))
    module, _, name = reference.partition(":")
    try:
        make = cast(MakeTrainer, getattr(importlib.import_module(module), name))
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            "run configuration", "trainer", f"cannot load {reference!r} ({error})", 'give "module:function"'
        ) from error
    return make(cast(Config, context.node_config), cast(Config, context.run_config))


def _cluster(context: Context) -> str:
    return str(context.node_config.get("cluster", f"node-{context.node_id}"))


app = make_app()
