"""`python -m devstack.functions APP_DIR`."""

import sys

from devstack.doctor import check_packages


def _run() -> int:
    for problem in check_packages():
        sys.stderr.write(f"devstack.functions: {problem}\n")
        return 1
    from devstack.functions.cli import main  # noqa: PLC0415  # needs the packages

    return main()


if __name__ == "__main__":
    sys.exit(_run())
