"""A command in a process of its own, forked from one that has imported most of it.

The imports are most of what a process of ``sas`` costs. The process is like a new one otherwise:
its own environment, directory, input and output. A warning is an error in it.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import sas.adapters.queues
import sas.adapters.servicebus
import sas.adapters.tables.store  # what most verbs load when they run
import sas.cli.main  # noqa: F401

ROOT = Path(__file__).resolve().parents[1]
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__])


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


def sas_said(
    arguments: Sequence[str], environ: Mapping[str, str], *, cwd: Path = ROOT, stdin: str = ""
) -> Said:
    """Run ``sas`` with this environment and no other."""
    return said_by("sas.cli.main", arguments, environ, cwd=cwd, stdin=stdin)


def said_by(
    module: str,
    arguments: Sequence[str],
    environ: Mapping[str, str],
    *,
    cwd: Path = ROOT,
    stdin: str = "",
) -> Said:
    """Run the ``main`` of a module with this environment and no other."""
    with TemporaryDirectory() as folder:
        scratch = Path(folder)
        (scratch / "stdin").write_text(stdin)
        command = (module, list(arguments), dict(environ), cwd, scratch)
        process = _FORKS.Process(target=_run, args=command)
        process.start()
        process.join(300)
        assert process.exitcode is not None, f"{module} {' '.join(arguments)} still runs"
        out, err = ((scratch / name).read_text() for name in ("stdout", "stderr"))
        return Said(process.exitcode, out, err)


def _run(
    module: str, arguments: Sequence[str], environ: Mapping[str, str], cwd: Path, scratch: Path
) -> None:
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environ)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        setattr(sys, name, (scratch / name).open(mode))  # flushed when this process ends
    warnings.simplefilter("error")
    sys.exit(import_module(module).main(arguments))
