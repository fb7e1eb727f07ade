#!/usr/bin/env bash
# Writes the two lock files from pyproject.toml: pins and hashes, no addresses of any index.
# Needs uv (pip install uv). Run it after changing a dependency, then commit both files.
set -euo pipefail
cd "$(dirname "$0")/.."
common=(--universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links
        --no-header --no-annotate --quiet)
deployed=(--extra functions --extra telemetry)
uv pip compile pyproject.toml "${deployed[@]}" "${common[@]}" -o requirements.txt
uv pip compile pyproject.toml "${deployed[@]}" --extra dev "${common[@]}" -c requirements.txt -o requirements-dev.txt
