"""``sas`` in a process of its own, forked from one that has imported everything.

The imports are most of what a process of ``sas`` costs. The process is like a new one otherwise:
its own environment, directory and output.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import sas.adapters.queues
import sas.adapters.servicebus
import sas.adapters.table_store  # noqa: F401  what most verbs load when they run
from sas.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__])


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


def sas_said(arguments: Sequence[str], environ: Mapping[str, str]) -> Said:
    """Run the command with this environment and no other."""
    with TemporaryDirectory() as scratch:
        out, err = Path(scratch, "out"), Path(scratch, "err")
        process = _FORKS.Process(target=_run, args=(list(arguments), dict(environ), out, err))
        process.start()
        process.join(300)
        assert process.exitcode is not None, f"sas {' '.join(arguments)} still runs"
        return Said(process.exitcode, out.read_text(), err.read_text())


def _run(arguments: Sequence[str], environ: Mapping[str, str], out: Path, err: Path) -> None:
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(environ)
    sys.stdout, sys.stderr = out.open("w"), err.open("w")  # flushed when this process ends
    sys.exit(main(arguments))
