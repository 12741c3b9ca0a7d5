# SPDX-License-Identifier: Apache-2.0
"""The console command `shoal`: finds the packages' subcommands and loads the one that is called.

Subcommands come from the entry-point group `shoal.commands`. Only the one named on the command line is
imported, so `shoal --help` costs no torch, and a missing extra gives one line instead of a traceback.
"""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, entry_points

import click
import typer
from typer.core import TyperGroup

from shoal_common import __version__
from shoal_common.errors import ShoalError

GROUP = "shoal.commands"
INTERRUPTED = 130

SUMMARIES = {
    "score": "Score nodes for pods: kube-scheduler's own profile, Volcano, FGD, or a policy artifact.",
    "policy": "Print and check a policy artifact.",
    "privacy": "Print a privacy ledger and what a plan would cost.",
    "simulate": "Federate virtual clusters in one process and compare with kube-scheduler.",
    "replay": "Replay a pod list onto a node list under a scorer (openb).",
    "trace": "List, check and describe traces.",
    "bench": "Measure speed side by side with peers.",
    "experiment": "Run a reproducible experiment and write its results page.",
}

EXTRAS = {
    "shoal_common": "learn",
    "shoal_client": "client",
    "shoal_server": "server",
    "shoal_simulations": "simulations",
}


class LazyGroup(TyperGroup):
    """A group whose subcommands are imported when called, not when listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the subcommands of every installed package, in the order of the summaries."""
        found = {point.name for point in entry_points(group=GROUP)}
        return [name for name in SUMMARIES if name in found] + sorted(found - SUMMARIES.keys())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one subcommand; unknown names give None."""
        for point in entry_points(group=GROUP):
            if point.name == cmd_name:
                command = _load(point)
                command.name = cmd_name
                return command
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of subcommands without importing any of them."""
        rows = [(name, SUMMARIES.get(name, "")) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write click's plain help: the rich one would import every subcommand."""
        click.Group.format_help(self, ctx, formatter)


def _load(point: EntryPoint) -> click.Command:
    """Import the subcommand behind an entry point.

    Raises:
        ShoalError: an optional library is missing; the message names the extra to install.
    """
    try:
        loaded = point.load()
    except ModuleNotFoundError as error:
        package = point.value.split(".", 1)[0]
        extra = EXTRAS.get(package, "all")
        raise ShoalError(
            f"shoal {point.name}: {error.name or 'a library'} is not installed; pip install 'shoal[{extra}]'"
        ) from error
    return typer.main.get_command(loaded)


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    help="Shoal: federated learning for Kubernetes scheduling.",
)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and leave.")) -> None:
    if version:
        typer.echo(f"shoal {__version__}")
        raise typer.Exit


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong input, 130 interrupted."""
    command = typer.main.get_command(app)
    try:
        code = command.main(args=argv, prog_name="shoal", standalone_mode=False)
    except ShoalError as error:
        print(f"shoal: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:  # the bare command
        print(error.format_message(), file=sys.stderr)
        sys.exit(2)
    except click.ClickException as error:
        message = " ".join(error.format_message().split()).rstrip(".")
        print(f"shoal: {message}; see --help", file=sys.stderr)
        sys.exit(2)
    except OSError as error:  # a full disk, a folder that became read-only
        print(f"shoal: {error.filename or 'output'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(1)
    except (KeyboardInterrupt, click.Abort):
        print("shoal: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    if code == INTERRUPTED:  # typer turns Ctrl-C into this code
        print("shoal: interrupted", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)
