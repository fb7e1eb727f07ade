"""Rehearse a deployment here, from the zip and nothing else: ``make rehearse``.

It does what Azure does: unpacks the zip, starts Microsoft's own worker core of the pinned version
on it with the app settings that Bicep computes, and hands it the messages of the queues. Then all
of it is stopped at once in mid-flight, as the update strategy Recreate does, and a second version
from a second zip goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import os
import shutil
import sys
from pathlib import Path

from lab.rehearsal.tls import certificate, namespace_host

PROJECT = Path(__file__).parents[2]


def main(arguments: list[str] | None = None) -> int:
    """Rehearse; return 0, or 1 if something failed, or 130 for Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m lab.rehearsal", description=__doc__)
    parser.add_argument("--orders", type=int, default=60, help="orders in flight at the Recreate")
    parser.add_argument("--out", type=Path, default=PROJECT / "build/rehearsal", help="its files")
    options = parser.parse_args(arguments)
    try:
        return _rehearse(options)
    except KeyboardInterrupt:
        print("stopped; no process is left")
        return 130


def _rehearse(options: argparse.Namespace) -> int:
    out: Path = options.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    host = namespace_host()
    files = certificate(out, "127.0.0.1", host)
    os.environ["SSL_CERT_FILE"] = str(files.certificate)  # before aiohttp is imported
    logging.basicConfig(level=logging.CRITICAL)
    run = importlib.import_module("lab.rehearsal.run")
    return int(asyncio.run(run.rehearse(run.Place(out, files, host), options.orders)))


if __name__ == "__main__":
    sys.exit(main())
