#!/bin/sh
# Runs programs that write every kind of event into a separate trace buffer, and checks how Perfetto's trace processor
# reads the events. Needs root, tracefs, node and the files that setup.sh fetches.
set -eu
cd "$(dirname "$0")/../.."
programs=${CARGO_TARGET_DIR:-target}/debug/examples
dir=$(mktemp -d)
instance=/sys/kernel/tracing/instances/atrace-every-kind-$$
trap 'rmdir "$instance" 2>/dev/null || true; rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM

# check PROGRAM ARGUMENT…: runs the program, and compares the events that it wrote with the expected events, which it
# prints.
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

# Without -p, cargo uses what the tests built. With -p, some dependencies would have other features, and would be built
# again.
cargo build --quiet --example every_kind --example every_construct
check every_kind
for role in alone filtered layer stack; do
    check every_construct $role
done
