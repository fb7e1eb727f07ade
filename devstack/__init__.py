"""Azure on one machine: a Service Bus broker, an embedded Functions host, Azurite."""

import sys

# This file must parse on every Python 3, so that an old Python prints the sentence below.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(
        "devstack: this is Python %d.%d: install Python 3.11 or newer."  # noqa: UP031
        % (sys.version_info[0], sys.version_info[1])
    )
