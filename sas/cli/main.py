"""The ``sas`` command. Each module has the verbs of one purpose; this one puts them together.

- Orders: ``submit``, ``list``, ``show``. Repair: ``resubmit``, ``skip``, ``undo``, ``callback``.
- System: ``status``, ``messages``, ``desk``.
- Development: ``workflows``, ``sim``, ``new``, ``infra``, ``docs``.

Typer reads the arguments, and Rich draws (``screen``). A verb gets its table and its namespace from
``system``, asks ``sas.operate``, and prints the records that this answers.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from inspect import cleandoc
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.exceptions import TyperException

from sas.cli import screen
from sas.config import SettingError
from sas.distribution import version
from sas.operate.errors import UNAVAILABLE, USAGE, CommandError

ORDERS, REPAIR, SYSTEM, DEVELOPMENT = "Orders", "Repair", "System", "Development"
EPILOG = (
    "Exit codes: 0 done. 1 not done, not possible, or an order did not complete. "
    f"{USAGE} bad usage or input. {UNAVAILABLE} Service Bus or Storage did not answer or refused. "
    f"{screen.INTERRUPTED} interrupted."
)
VERBS: Mapping[str, tuple[str, str]] = {
    "submit": (ORDERS, "submit.submit"),
    "list": (ORDERS, "orders.list_orders"),
    "show": (ORDERS, "orders.show_order"),
    "resubmit": (REPAIR, "act.resubmit"),
    "skip": (REPAIR, "act.skip"),
    "undo": (REPAIR, "act.undo"),
    "callback": (REPAIR, "act.callback"),
    "status": (SYSTEM, "status.status"),
    "messages": (SYSTEM, "messages.room"),
    "desk": (SYSTEM, "desk.desk"),
    "workflows": (DEVELOPMENT, "workflows.room"),
    "sim": (DEVELOPMENT, "sim.sim"),
    "new": (DEVELOPMENT, "project.new"),
    "infra": (DEVELOPMENT, "project.infra"),
    "docs": (DEVELOPMENT, "project.docs"),
    "azd": ("", "azd.azd"),
    "why": ("", "orders.show_order"),
}
"""The group of each verb in the help, and its module and function. Without a group it is hidden."""
OTHER_NAMES: Mapping[str, str] = {
    "acknowledge": "sas show ORDER_ID --acknowledge",
    "alerts": "sas messages list alerts",
    "cancel": "sas undo ORDER_ID",
    "circuits": "sas status",
    "dlq": "sas messages list dead-letters",
    "doctor": "sas status --check",
    "export": "sas list --to FILE",
    "incidents": "sas status",
    "queues": "sas status",
    "rejected": "sas messages list rejected",
    "watch": "sas status --follow",
    **dict.fromkeys(("retry", "rerun", "replay"), "sas resubmit ORDER_ID"),
    **dict.fromkeys(("rollback", "compensate", "stop", "terminate", "abort"), "sas undo ORDER_ID"),
    **dict.fromkeys(("approve", "reject", "signal"), "sas callback ORDER_ID"),
    **dict.fromkeys(("complete", "resolve"), "sas skip ORDER_ID --input JSON"),
    **dict.fromkeys(("describe", "get", "logs", "history"), "sas show ORDER_ID"),
    **dict.fromkeys(("send", "start", "run"), "sas submit FILE"),
    **dict.fromkeys(("health", "top", "live"), "sas status"),
    "check": "sas status --check",
    "failed": "sas list",
    "resend": "sas messages resend ID",
    "dead-letters": "sas messages list dead-letters",
    "draw": "sas workflows draw",
    "schema": "sas workflows schema",
}
"""Verbs of versions before this one and of other tools, and ours in their place."""


def _fold(command: Any, ctx: Any) -> None:  # Typer gives no public name to the class of a command
    """Make a help fold as wide as the terminal, and no text of it markup.

    In a docstring, a paragraph that begins with ``\\b`` keeps its lines: an example. No type is
    written beside an argument or an option without a value, and no range beside a number.
    """
    from rich.markup import escape  # noqa: PLC0415  # slow to import

    command.help = "\n\n".join(
        f"[cyan]{escape(cleandoc(part[1:]))}[/]"
        if part.startswith("\b")
        else escape(" ".join(part.split("\n")))
        for part in cleandoc(command.help or "").split("\n\n")
    )
    for param in command.get_params(ctx):
        param.help = escape(param.help or "")
        vars(param)["_get_number_range_help_str"] = str
        if getattr(param, "is_flag", isinstance(param, TyperArgument)):
            vars(param)["display_type_rich"] = lambda **_: ""


class VerbCommand(TyperCommand):
    """A verb of the command."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        _fold(self, ctx)
        super().format_help(ctx, formatter)


class VerbGroup(TyperGroup):
    """The command, or a verb that has verbs of its own."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, with a line for each verb."""
        for command in (self, *self.commands.values()):
            _fold(command, ctx)
        super().format_help(ctx, formatter)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    # The command reports errors in its own sentences. The SDK's log would repeat them on stderr.
    # Warnings of the client are printed by ``submit``.
    for name in ("azure", "sas.client"):
        logging.getLogger(name).addHandler(logging.NullHandler())
    _prepare_output()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = app(arguments)(arguments, prog_name="sas", standalone_mode=False) or 0
    except TyperException as error:
        code = error.exit_code
        _explain(error)
    except CommandError as error:
        screen.complain(f"sas: {error}")
        code = error.exit_code
        if isinstance(error, screen.OutputError):
            _stop_output()
    except SettingError as error:
        screen.complain(f"sas: {error}")
        code = USAGE
    except KeyboardInterrupt:
        code = screen.INTERRUPTED
    except BrokenPipeError:
        # The reader of the output, such as head or a pager, has ended.
        _stop_output()
        code = 1
    return code


def _explain(error: TyperException) -> None:
    """Print what is wrong with the arguments. A command without arguments has printed its help."""
    if type(error).__name__ == "NoArgsIsHelpError":  # it has no public name
        return
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "sas"
    text = " ".join(error.format_message().replace("Value error, ", "").split())
    screen.complain(f"sas: {text}{'' if text.endswith(('.', '?')) else '.'} See {command} --help")


def verbs() -> list[str]:
    """Return the names of the verbs that the help shows."""
    return [name for name, (group, _) in VERBS.items() if group]


def _print_version(is_asked: bool) -> None:  # Typer gives it so
    if is_asked:
        is_copy = (Path(__file__).parents[2] / "pyproject.toml").exists()
        screen.say(f"sas {version()}{' (a working copy)' if is_copy else ''}")
        raise typer.Exit


def _root(
    *,
    show_version: Annotated[  # its callback prints it
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
) -> None:
    """Submit orders and follow them to their end, see what became of them, and act when one fails.

    A page for the person on call: sas docs operating.
    """


def app(arguments: Sequence[str] = ()) -> typer.Typer:
    """Return the command with the verb that the arguments name, or else with all verbs.

    A verb is quick to start because the modules of the others are not imported.
    """
    room = typer.Typer(
        name="sas",
        cls=VerbGroup,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    room.callback(epilog=EPILOG)(_root)
    names = [name for name in arguments[:1] if name in VERBS] or VERBS
    for name in names:
        group, place = VERBS[name]
        module, _, attribute = place.partition(".")
        verb = getattr(import_module(f"sas.cli.{module}"), attribute)
        if isinstance(verb, typer.Typer):
            for command in verb.registered_commands:
                command.cls = VerbCommand
            room.add_typer(verb, name=name, cls=VerbGroup, rich_help_panel=group)
        else:
            room.command(name, cls=VerbCommand, rich_help_panel=group, hidden=not group)(verb)
    for name, verb_here in OTHER_NAMES.items():
        _add_other_name(room, name, verb_here)
    return room


def _add_other_name(room: typer.Typer, name: str, verb: str) -> None:
    @room.command(
        name,
        hidden=True,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
        add_help_option=False,
    )
    def _old() -> None:
        screen.complain(f"sas: there is no verb {name}: use `{verb}`")
        raise typer.Exit(USAGE)


def _prepare_output() -> None:
    """Make sure that stdout exists, and that stdout and stderr take any text."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115  # stays open
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _stop_output() -> None:
    """Discard the text that is still in the buffer, because the last flush would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
