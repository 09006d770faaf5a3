#!/bin/sh
# Lets programs write every kind of event into a separate trace buffer, and Perfetto's trace processor read it.
# Needs root, tracefs, node and the files that setup.sh fetches.
set -eu
cd "$(dirname "$0")/../.."
programs=${CARGO_TARGET_DIR:-target}/debug/examples
dir=$(mktemp -d)
instance=/sys/kernel/tracing/instances/atrace-every-kind-$$
trap 'rmdir "$instance" 2>/dev/null || true; rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM

# check PROGRAM ARGUMENT…: runs the program and compares what it wrote with what it printed.
check() {
    mkdir "$instance"
    echo boot >"$instance/trace_clock"
    env -u ATRACE_BACKEND ATRACE_MARKER="$instance/trace_marker" ATRACE_PROPERTIES="$dir/properties" \
        "$programs/$1" ${2:+"$2"} >"$dir/expected.json"
    cat "$instance/trace" >"$dir/trace"
    rmdir "$instance"
    echo "$*:"
    node .ci/perfetto/check.mjs "$dir/trace" "$dir/expected.json"
}

# Without -p, cargo uses what the tests built: with it, some dependencies have other features.
cargo build --quiet --example every_kind --example every_construct
check every_kind
for role in alone filtered layer stack; do
    check every_construct $role
done
