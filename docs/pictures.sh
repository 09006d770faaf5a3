#!/bin/sh
# Makes the pictures of the README anew.
# Usage: docs/pictures.sh [costs] [trace]   (both, if none is named)
#   costs   docs/costs.svg, the report's main plot, of what the benches left in target/overhead: run `cargo bench` first
#   trace   docs/trace.png, the example service recorded by `atrace run` and shown by Perfetto's UI; as root, with tracefs,
#           chromium, node with npm, python3 with pip
set -eu
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
[ $# -gt 0 ] || set -- costs trace

costs() {
    cargo run --quiet -p atrace-benches --bin report
    [ -f "$target/report/costs.svg" ] || { echo "nothing was measured: run cargo bench" >&2; return 1; }
    cp "$target/report/costs.svg" docs/costs.svg
}

trace() {
    .ci/perfetto/setup.sh --ui
    .ci/browser/setup.sh
    cargo build --quiet -p atrace --features cli --bin atrace -p atrace-subscriber --example service_with_tracing
    dir=$(mktemp -d)
    trap 'rm -rf "$dir"' EXIT
    "$target/debug/atrace" run -o "$dir/service.ftrace" -- "$target/debug/examples/service_with_tracing"
    node .ci/perfetto/picture.mjs "${PERFETTO_DIR:-target/perfetto}/ui" "$dir/service.ftrace" docs/trace.png
}

for picture in "$@"; do
    case $picture in
    costs | trace) "$picture" ;;
    *) echo "usage: docs/pictures.sh [costs] [trace]" >&2; exit 2 ;;
    esac
done
ls -l docs/*.svg docs/*.png
