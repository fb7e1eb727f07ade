#!/usr/bin/env bash
# Writes the lock files from pyproject.toml: pins and hashes, no addresses of any index.
# Needs uv (pip install uv). Run it after changing a dependency, then commit them.
set -euo pipefail
cd "$(dirname "$0")/.."
common=(--universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links
        --no-header --no-annotate --quiet)
deployed=(--extra functions --extra telemetry)
uv pip compile pyproject.toml "${deployed[@]}" "${common[@]}" -o requirements.txt
uv pip compile pyproject.toml "${deployed[@]}" --extra dev "${common[@]}" -c requirements.txt -o requirements-dev.txt
# What `make docs` installs, in an environment of its own: the extra alone.
python3 -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])' |
    uv pip compile - "${common[@]}" -o requirements-docs.txt
# What workflows run, each in an environment of its own.
for name in ci checkov mutation; do
    uv pip compile --group "$name" "${common[@]}" -o "requirements-$name.txt"
done
