#!/bin/sh
# Prints the newest usable Python from 3.13 down to 3.11 (3.13 is what Azure runs); says what to do if there is none.
works() { "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1; }
if [ -n "${PYTHON:-}" ]; then
    works "$PYTHON" && { echo "$PYTHON"; exit 0; }
    echo "PYTHON=$PYTHON is not a Python 3.11, 3.12 or 3.13 with venv" >&2; exit 1
fi
for version in 3.13 3.12 3.11; do
    for candidate in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/$version*/bin/python; do
        works "$candidate" && { echo "$candidate"; exit 0; }
    done
done
works python3 && { echo python3; exit 0; }
echo "No Python 3.11, 3.12 or 3.13 with the venv module was found: install one, or say PYTHON=/path/to/python make ..." >&2
exit 1
