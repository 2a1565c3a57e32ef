#!/bin/sh
# mypy wants a folder named `pagedom` that holds the package; the repository itself is that package
# under another name, so it is shown to mypy through a link outside the tree.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
links=$(mktemp -d)
trap 'rm -rf "$links"' EXIT
ln -s "$root" "$links/pagedom"
cd "$links"
MYPYPATH="$links" "${PYTHON:-python}" -m mypy --config-file "$root/pyproject.toml" \
    --cache-dir "$root/.mypy_cache" \
    -p pagedom.models -p pagedom.graph_ops -p pagedom.compiler -p pagedom.runtime "$@"
