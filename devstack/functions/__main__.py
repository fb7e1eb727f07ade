"""`python -m devstack.functions APP_DIR`."""

import sys

from devstack.functions.cli import main

if __name__ == "__main__":
    sys.exit(main())
