#!/bin/sh
# Makes the pictures of the README anew.
# Usage: docs/pictures.sh [costs] [trace]   (both, if none is named)
#   costs   docs/costs.svg, with docs/costs.md and the lines of the README, of what the benches left: run `cargo bench` first
#   trace   docs/trace.png, the example service recorded by `atrace run` and shown by Perfetto's UI; with
#           chromium, node with npm, python3 with pip
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- costs trace

costs() {
    cargo run --quiet -p atrace-benches --bin report -- --docs
}

trace() {
    .ci/perfetto/setup.sh --ui
    .ci/browser/setup.sh
    cargo build --quiet -p atrace --features cli --bin atrace -p atrace-subscriber --example service_with_tracing
    dir=$(mktemp -d)
    trap 'rm -rf "$dir"' EXIT
    "${CARGO_TARGET_DIR:-target}/debug/atrace" run -o "$dir/service.pftrace" -- "${CARGO_TARGET_DIR:-target}/debug/examples/service_with_tracing"
    node .ci/perfetto/picture.mjs "${PERFETTO_DIR:-target/perfetto}/ui" "$dir/service.pftrace" docs/trace.png
}

for picture in "$@"; do
    case $picture in
    costs | trace) "$picture" ;;
    *) echo "usage: docs/pictures.sh [costs] [trace]" >&2; exit 2 ;;
    esac
done
ls -l docs/*.svg docs/*.png
