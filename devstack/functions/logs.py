"""Logs: one JSON object a line on standard error, with the invocation it belongs to."""

import json
import logging
import sys
from datetime import UTC, datetime

from devstack.functions.context import INVOCATION

_LEVELS = {
    "Trace": logging.DEBUG,
    "Debug": logging.DEBUG,
    "Information": logging.INFO,
    "Warning": logging.WARNING,
    "Error": logging.ERROR,
    "Critical": logging.CRITICAL,
    "None": logging.CRITICAL + 1,
}
# The SDK narrates every frame and retry at INFO.
_NOISY = ("azure", "aiohttp", "asyncio", "urllib3")


class JsonFormatter(logging.Formatter):
    """time, level, logger, message; invocation and function inside of one; error if any."""

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        current = INVOCATION.get()
        if current is not None:
            line["invocation"], line["function"] = current
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure_logs(level: str) -> None:
    """Send this process's logs to standard error at host.json's default `level`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(_LEVELS[level])
    for name in _NOISY:
        logging.getLogger(name).setLevel(max(logging.WARNING, _LEVELS[level]))
