"""``python -m sas.cli``, and the script ``sas``."""

import sys

from sas.distribution import lacking
from sas.operate.errors import USAGE


def start() -> int:
    """Run the command; return its exit code. If a package is missing, say what to install."""
    try:
        from sas.cli import screen  # noqa: PLC0415  # it imports msgspec
        from sas.cli.main import main  # noqa: PLC0415  # it imports Typer

        screen.escape_stderr()
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
