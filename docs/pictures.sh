#!/bin/sh
# Makes the pictures of the README and of docs/programs.md anew.
# Usage: docs/pictures.sh [costs] [trace] [lives]   (all, if none is named)
#   costs   docs/costs.svg, with docs/costs.md and the lines of the README, of what the benches left: run `cargo bench` first
#   trace   docs/trace.png, the example service recorded by `atrace run`, without rights, and shown by Perfetto's UI; with
#           chromium, node with npm, python3 with pip
#   lives   docs/lives.png, in the same way, of the web service crates/axum-service
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- costs trace lives

costs() {
    cargo run --quiet -p atrace-benches --bin report -- --docs
}

# picture PROGRAM FILE SLICE NUMBER: records the program, by its name alone, which the picture shows.
picture() {
    .ci/perfetto/setup.sh --ui
    .ci/browser/setup.sh
    dir=$(mktemp -d)
    trap 'rm -rf "$dir"' EXIT
    PATH=$built/examples:$built:$PATH atrace run -o "$dir/$1.pftrace" -- "$1"
    node .ci/perfetto/picture.mjs "${PERFETTO_DIR:-target/perfetto}/ui" "$dir/$1.pftrace" "$2" "$1" "$3" "$4"
    rm -rf "$dir"
}

built=${CARGO_TARGET_DIR:-$PWD/target}/debug

trace() {
    cargo build --quiet -p atrace-cli --bin atrace -p atrace-subscriber --example service_with_tracing
    # A poll of a request that is not its first: an arrow leads to it.
    picture service_with_tracing docs/trace.png request 30
}

lives() {
    cargo build --quiet -p atrace-cli --bin atrace
    cargo build --quiet --manifest-path crates/axum-service/Cargo.toml --target-dir "${built%/debug}"
    picture axum-service docs/lives.png request longest
}

for picture in "$@"; do
    case $picture in
    costs | trace | lives) "$picture" ;;
    *) echo "usage: docs/pictures.sh [costs] [trace] [lives]" >&2; exit 2 ;;
    esac
done
ls -l docs/*.svg docs/*.png
