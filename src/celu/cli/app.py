"""`celu`: all commands, and the one place that turns an error into a message and an exit code."""

from __future__ import annotations

import sys
from importlib import import_module

import typer
from rich.markup import escape

from celu.cli.console import Console
from celu.errors import CeluError, ConfigError
from celu.ranks.environment import num_ranks
from celu.threads import exit_within, exit_without_finalizing

_INTERRUPTED = 130  # the exit code that shells use for Ctrl-C
_EXIT_S = 30.0  # for threads to end after an error

app = typer.Typer(
    name="celu",
    help="Train one neural network across companies that may not share their data.\n\n"
    "Start with [bold]celu demo[/bold]: two parties, one machine, five minutes.",
    epilog="Exit codes: 0 done, 2 command line, 3 settings, 4 data, 5 model, 6 certificates, "
    "7 contracts differ, 8 protocol, 9 tensor shape, 10 NaN or Inf, 11 peer lost, "
    "12 peer failed, 13 rows not aligned, 14 checkpoint, 15 a rank lost, "
    "130 interrupted, 1 anything else.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name in (
    "demo",
    "certs",
    "data",
    "prepare",
    "split",
    "inspect",
    "models",
    "align",
    "check",
    "doctor",
    "run",
    "simulate",
    "tune",
    "baseline",
    "export",
    "predict",
    "evaluate",
    "audit",
    "serve",
    "report",
    "dashboard",
    "bench",
    "version",
):
    import_module(f"celu.cli.{_name}").register(app)


@app.callback()
def _check_ranks(context: typer.Context) -> None:
    """Raise ConfigError for a command that torchrun would start several times, but one for all."""
    command = context.invoked_subcommand
    if num_ranks() > 1 and command not in ("run", "version"):
        raise ConfigError(
            "torchrun: expected celu run, which divides each batch among the ranks of a party, got "
            f"celu {command} at {num_ranks()} ranks; start it without torchrun, as one process"
        )


def main() -> None:
    """Run the command line as a process, which ends soon after an error."""
    code = 1  # anything but an exit
    try:
        run_app(app)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        raise
    finally:
        if code:
            Console().file.flush()
            exit_within(_EXIT_S, code)
        exit_without_finalizing(code)


def run_app(app: typer.Typer) -> None:
    """Run a command line; an error becomes a message and an exit code."""
    try:
        app()
    except CeluError as error:
        Console(stderr=True).print(
            f"[bold red]{type(error).__name__}[/bold red] {escape(str(error))}", soft_wrap=True
        )
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, SystemExit) as stop:
        if isinstance(stop, SystemExit) and stop.code != _INTERRUPTED:
            raise
        # Typer turns an interrupt into an exit and prints nothing.
        Console(stderr=True).print(
            "[bold]interrupted[/bold]; start the same command again to resume"
        )
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
