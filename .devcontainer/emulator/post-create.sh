#!/bin/sh
# The Functions Core Tools, then what `make setup` makes: .venv and Azurite's own package for the tests.
set -eu
npm install --global azure-functions-core-tools@4
make setup
echo "ready: make demo, make test, or: . .venv/bin/activate && func start"
