"""`python -m devstack.functions.queues APP_DIR`: a Config.json made of the app's bindings.

For an app without a Config.json. It knows the queues of triggers and outputs; a queue that only a
client in the code uses is in no binding, so it needs a Config.json.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from devstack.functions.indexing import FoundFunction, find, imported
from devstack.functions.settings import Settings
from devstack.inputs import DevstackError

_SUBQUEUES = ("/$deadletterqueue", "/$transfer/$deadletterqueue")


def main(app_dir: Path) -> int:
    """Print the configuration; return 0, or 1 after one sentence on standard error."""
    try:
        settings = Settings.load(app_dir, allow_remote=True)  # `up` and the host check this
        with settings.in_environment(), imported(app_dir) as module:
            print(json.dumps(config_of(find(module), settings)))  # noqa: T201  # the answer
    except DevstackError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


def config_of(functions: Iterable[FoundFunction], settings: Settings) -> dict[str, Any]:
    """Return the emulator's configuration with each queue that a binding names."""
    sessions: dict[str, bool] = {}
    for function in functions:
        for binding in function.bindings:
            if binding["type"] in {"serviceBusTrigger", "serviceBus"} and "queueName" in binding:
                where = f"The binding {binding['name']} of function {function.name}"
                name = _queue(settings.resolve(str(binding["queueName"]), where=where))
                wanted = str(binding.get("isSessionsEnabled", False)).lower() == "true"
                sessions[name] = sessions.get(name, False) or wanted
    queues = [
        {"Name": name, "Properties": {"RequiresSession": needed}}
        for name, needed in sorted(sessions.items())
    ]
    namespace = {"Name": "sbemulatorns", "Queues": queues, "Topics": []}
    return {"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "File"}}}


def _queue(path: str) -> str:
    """Return the queue of a path, which may name one of its subqueues."""
    path = path.strip().lower()
    for subqueue in _SUBQUEUES:
        path = path.removesuffix(subqueue)
    return path


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
