#!/bin/sh
# Makes the pictures of the README anew.
# Usage: docs/pictures.sh [costs] [trace]   (both, if none is named)
#   costs   docs/costs.svg, with docs/costs.md and the lines of the README, of what the benches left: run `cargo bench` first
#   trace   docs/trace.png, the example service recorded by `atrace run`, without rights, and shown by Perfetto's UI; with
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
    cargo build --quiet -p atrace-cli --bin atrace -p atrace-subscriber --example service_with_tracing
    dir=$(mktemp -d)
    trap 'rm -rf "$dir"' EXIT
    built=${CARGO_TARGET_DIR:-$PWD/target}/debug
    # By its name alone, which the picture shows.
    PATH=$built/examples:$PATH "$built/atrace" run -o "$dir/service.pftrace" -- service_with_tracing
    # A poll of a request that is not its first: an arrow leads to it.
    node .ci/perfetto/picture.mjs "${PERFETTO_DIR:-target/perfetto}/ui" "$dir/service.pftrace" docs/trace.png service_with_tracing request 30
}

for picture in "$@"; do
    case $picture in
    costs | trace) "$picture" ;;
    *) echo "usage: docs/pictures.sh [costs] [trace]" >&2; exit 2 ;;
    esac
done
ls -l docs/*.svg docs/*.png
