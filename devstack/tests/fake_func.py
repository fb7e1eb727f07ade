"""A `func` that says what it was given and listens, as the Core Tools do."""

import os
import sys
from pathlib import Path

import pytest

FUNC = f"""#!{sys.executable}
import json, os, sys, threading, http.server
names = ("SB", "AzureWebJobs.other.Disabled", "MyBus")
told = {{"argv": sys.argv[1:], "cwd": os.getcwd(), "env": [os.environ.get(n) for n in names]}}
print("told " + json.dumps(told), file=sys.stderr)
port = int(sys.argv[sys.argv.index("--port") + 1])
if os.environ.get("SB") == "ends at once":
    sys.exit(3)
server = http.server.HTTPServer(("127.0.0.1", port), None)
if os.environ.get("SB") == "ends later":
    threading.Timer(0.5, os._exit, [0]).start()
server.serve_forever()
"""


def put_func_on_path(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the program into a new directory, and let PATH begin with it."""
    directory.mkdir()
    (directory / "func").write_text(FUNC)
    (directory / "func").chmod(0o755)
    monkeypatch.setenv("PATH", str(directory), prepend=os.pathsep)
