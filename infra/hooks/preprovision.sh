#!/bin/sh
# Before anything is created: has every setting without a default been given?
# Names are read from main.parameters.json; azd sets AZURE_ ones itself, and applications may come without a principal.
set -eu
here=$(dirname "$0")
missing=""
for name in $(grep -o '\${[A-Z][A-Z0-9_]*}' "$here/../main.parameters.json" | tr -d '${}' | sort -u); do
    case "$name" in AZURE_* | SAS_PRINCIPAL_*) continue ;; esac
    eval "value=\${$name:-}"
    [ -n "$value" ] || missing="$missing $name"
    case "$name $value" in
        *_URL\ http://*) echo "$name=$value: give an https address; in Azure nothing travels in clear" >&2; exit 1 ;;
    esac
done
if [ -n "$missing" ]; then
    echo "These settings are missing:$missing" >&2
    for name in $missing; do echo "    azd env set $name ..." >&2; done
    exit 1
fi
