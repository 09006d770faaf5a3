#!/bin/sh
# Fetches the library that drives a browser: a pinned version of playwright-core, from npm. Chromium itself comes
# from Debian.
# Usage: setup.sh [DIRECTORY]   (default: $BROWSER_DIR, else target/browser)
# Does nothing if the directory already has the library.
set -eu

version=1.65.1

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
dir=${1:-${BROWSER_DIR:-$here/../../target/browser}}

command -v chromium >/dev/null || { echo "setup.sh: chromium is needed: apt-get install chromium" >&2; exit 1; }
if grep -qs "\"version\": \"$version\"" "$dir/node_modules/playwright-core/package.json"; then
    exit 0
fi
mkdir -p "$dir"
npm install --silent --no-audit --no-fund --no-save --ignore-scripts --prefix "$dir" "playwright-core@$version"
