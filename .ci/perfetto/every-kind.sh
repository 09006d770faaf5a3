#!/bin/sh
# Writes every kind of event into a trace buffer of its own and has Perfetto's trace processor read it.
# Needs root, tracefs, node and what setup.sh fetches.
set -eu
cd "$(dirname "$0")/../.."
cargo build --quiet -p atrace --example every_kind
program=${CARGO_TARGET_DIR:-target}/debug/examples/every_kind
dir=$(mktemp -d)
instance=/sys/kernel/tracing/instances/atrace-every-kind-$$
mkdir "$instance"
trap 'rmdir "$instance"; rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM
echo boot >"$instance/trace_clock"
env -u ATRACE_BACKEND ATRACE_MARKER="$instance/trace_marker" ATRACE_PROPERTIES="$dir/properties" \
    "$program" >"$dir/expected.json"
cat "$instance/trace" >"$dir/trace"
node .ci/perfetto/check.mjs "$dir/trace" "$dir/expected.json"
