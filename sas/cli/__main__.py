"""``python -m sas.cli``, and the script ``sas``."""

import sys
from typing import Any, TextIO, cast

from sas.distribution import lacking
from sas.domain.texts import visible
from sas.operate.errors import USAGE


class VisibleStream:
    """A stream of lines, in which the invisible characters of each line are escaped.

    It stands before stderr: a text of a service may be in any error, in a log line of its SDK, or
    in the output of a program that is run. ``screen.console`` draws on the ``stream`` itself.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write a text; return the number of its characters."""
        self.stream.write("\n".join(map(visible, text.split("\n"))))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the stream."""
        return getattr(self.stream, name)


def start() -> int:
    """Run the command; return its exit code. If a package is missing, say what to install."""
    if sys.stderr is not None:
        sys.stderr = cast("TextIO", VisibleStream(sys.stderr))
    try:
        from sas.cli.main import main  # noqa: PLC0415  # it imports Typer

        return main()
    except ImportError as error:
        extra = {"desk": "desk", "sim": "testing"}.get(" ".join(sys.argv[1:2]), "cli")
        explanation = lacking(error, extra)
        if explanation is error:
            raise
        print(f"sas: {explanation}", file=sys.stderr)  # noqa: T201  # a command prints
        return USAGE


if __name__ == "__main__":
    sys.exit(start())
