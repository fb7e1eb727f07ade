"""``azd deploy SERVICE --from-package FILE``.

The state has ``refusals`` (so many uploads are refused first), ``failure`` (the text of any other
error) and ``uploaded`` (the sizes of the zips). Sources: azure-dev issue 8026 (the text of the
refusal), ``cli/azd/internal/cmd/service_graph.go`` (a zip in the folder for temporary files is
removed at the end, also of a failure).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.infra.stand_ins import Call, Refused, Rules, State

FORBIDDEN = (
    "deploying service orders: deployment failed: InaccessibleStorageException: Failed to access "
    "storage account for deployment: BlobUploadFailedException: Failed to upload blob to storage "
    "account: Response status code does not indicate success: 403 (This request is not authorized "
    "to perform this operation using this permission.)"
)


def _deploy(state: State, call: Call) -> str:
    package = Path(call.options["--from-package"])
    size = package.stat().st_size
    if package.is_relative_to(tempfile.gettempdir()):
        package.unlink()
    if state.get("failure"):
        raise Refused(state["failure"])
    if state.get("refusals"):
        state["refusals"] -= 1
        raise Refused(FORBIDDEN)
    state.setdefault("uploaded", []).append(size)
    return "  (✓) Done: Deploying service orders\n"


RULES: Rules = {"azd deploy orders": _deploy}
