# SPDX-License-Identifier: Apache-2.0
"""`shoal client`: learn from a live cluster, serve decisions to its scheduler, and say what is going on."""

from __future__ import annotations

import typer

from shoal_client.commands.agent import EPILOG as AGENT_EPILOG
from shoal_client.commands.agent import agent
from shoal_client.commands.doctor import EPILOG as DOCTOR_EPILOG
from shoal_client.commands.doctor import doctor
from shoal_client.commands.explain import EPILOG as EXPLAIN_EPILOG
from shoal_client.commands.explain import explain
from shoal_client.commands.export import EPILOG as EXPORT_EPILOG
from shoal_client.commands.export import export
from shoal_client.commands.replay import EPILOG as REPLAY_EPILOG
from shoal_client.commands.replay import replay
from shoal_client.commands.run import EPILOG as RUN_EPILOG
from shoal_client.commands.run import run
from shoal_client.commands.serve import EPILOG as SERVE_EPILOG
from shoal_client.commands.serve import serve
from shoal_client.commands.train import EPILOG as TRAIN_EPILOG
from shoal_client.commands.train import train

EPILOG = """Examples:

  shoal client doctor --kubeconfig ~/.kube/config

  shoal client serve --kubeconfig ~/.kube/config --policy runs/demo/policy --listen 127.0.0.1:8888"""

app = typer.Typer(add_completion=False, no_args_is_help=True, epilog=EPILOG)


@app.callback()
def client() -> None:
    """The client of one cluster. It is safe by default: without a SchedulingPolicy it only watches."""


app.command("agent", epilog=AGENT_EPILOG)(agent)
app.command("doctor", epilog=DOCTOR_EPILOG)(doctor)
app.command("explain", epilog=EXPLAIN_EPILOG)(explain)
app.command("export", epilog=EXPORT_EPILOG)(export)
app.command("replay", epilog=REPLAY_EPILOG)(replay)
app.command("run", epilog=RUN_EPILOG)(run)
app.command("serve", epilog=SERVE_EPILOG)(serve)
app.command("train", epilog=TRAIN_EPILOG)(train)
