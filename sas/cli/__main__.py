"""``python -m sas.cli``."""

import sys

from sas.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
