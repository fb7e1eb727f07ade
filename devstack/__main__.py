"""`python -m devstack up [APP_DIR]` and `python -m devstack doctor`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from devstack.doctor import run_doctor
from devstack.errors import DevstackError
from devstack.up import run_up


def parser() -> argparse.ArgumentParser:
    """The arguments of `python -m devstack`."""
    found = argparse.ArgumentParser(
        prog="python -m devstack",
        description="Azure on one machine: a Service Bus broker, Azurite, a Functions host.",
    )
    verbs = found.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="start all three and say what runs where")
    add = up.add_argument
    add("app_dir", type=Path, nargs="?", default=Path(), metavar="APP_DIR",
        help="the directory of function_app.py (default: here)")  # fmt: skip
    add("--config", type=Path, metavar="FILE", help="the emulator's Config.json: which queues")
    add("--processes", type=int, default=1, metavar="N", help="host processes (default 1)")
    add("--only", default="", metavar="NAME[,NAME]", help="run these functions only")
    add("--except", dest="without", default="", metavar="NAME[,NAME]",
        help="run all functions but these")  # fmt: skip
    add("--setting", action="append", default=[], metavar="NAME=VALUE", help="an app setting")
    add("--ports", choices=["fixed", "free"], default="fixed",
        help="the usual ports (5672, 5300, 10002, 7071), or free ones")  # fmt: skip
    add("--func", action="store_true", help="run the real Core Tools (func) as the host")
    add("--data", type=Path, metavar="DIR", help="keep messages, tables and timers here")
    add("-v", "--verbose", action="store_true", help="show the logs, by component")
    doctor = verbs.add_parser("doctor", help="say what is missing and how to mend it")
    doctor.add_argument("app_dir", type=Path, nargs="?", default=Path(), metavar="APP_DIR")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; 0 when all went well, 1 when something failed, 2 for bad usage."""
    arguments = parser().parse_args(argv)
    try:
        return run_up(arguments) if arguments.verb == "up" else run_doctor(arguments.app_dir)
    except DevstackError as error:
        print(f"devstack: {error}", file=sys.stderr)  # noqa: T201  # the command's answer
        return 1


if __name__ == "__main__":
    sys.exit(main())
