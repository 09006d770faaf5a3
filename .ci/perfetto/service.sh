#!/bin/sh
# Has `atrace run` make a picture of each example service, both ways, and Perfetto's trace processor say what is in it.
# Needs root, tracefs, node and what setup.sh fetches.
set -eu
cd "$(dirname "$0")/../.."
built=${CARGO_TARGET_DIR:-target}/debug
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM

cargo build --quiet -p atrace --features cli --bin atrace --example service
cargo build --quiet -p atrace-subscriber --example service_with_tracing

# check EXAMPLE REQUEST RENDER FAILED: the names, N for a number.
check() {
    # Also as the program of somebody who has no rights.
    cp "$built/examples/$1" "$dir/$1" && chmod 755 "$dir" "$dir/$1"
    env -u SUDO_GID SUDO_UID=65534 "$built/atrace" run --kernel -o "$dir/$1.ftrace" -- "$dir/$1" 2>"$dir/said"
    # Without rights, by a service.
    mkdir -m 777 "$dir/place" && cp "$built/atrace" "$dir" && chmod 755 "$dir/atrace"
    (cd "$dir/place" && env -u SUDO_UID setpriv --reuid 65534 --regid 65534 --clear-groups \
        "$dir/atrace" run -o "$1.pftrace" -- "$dir/$1" 2>>"$dir/said")
    mv "$dir/place/$1.pftrace" "$dir" && rmdir "$dir/place"
    cat "$dir/said"
    [ "$(grep -c 'events written, none lost$' "$dir/said")" -eq 2 ]
    node - "$2" "$3" "$4" >"$dir/expected.json" <<'NODE'
const [request, render, failed] = process.argv.slice(2);
const name = (pattern, number) => pattern.replace('N', number);
const numbers = [...Array(40).keys()];
console.log(JSON.stringify({
  slices: [
    { name: 'parse', count: 40 }, { name: 'read', count: 40 }, { name: 'draw', count: 37 },
    ...numbers.map((n) => ({ name: name(render, n) })),
  ],
  async: numbers.map((n) => ({ name: name(request, n), track: 'requests' })),
  instants: [{ name: 'ready' }, ...[12, 25, 38].map((n) => ({ name: name(failed, n) }))],
}));
NODE
    node .ci/perfetto/check.mjs "$dir/$1.ftrace" "$dir/expected.json"
    node .ci/perfetto/check.mjs "$dir/$1.pftrace" "$dir/expected.json"
    # Two counters of one process, in which the main thread and several others wrote; nothing else that wrote.
    node .ci/perfetto/query.mjs "$dir/$1.ftrace" "
        SELECT p.name,
          (SELECT count() FROM thread t WHERE t.upid = p.upid AND t.name = 'worker') > 2 AS workers,
          (SELECT count() FROM thread t WHERE t.upid = p.upid AND t.is_main_thread AND t.name = substr('$1', 1, 15)) AS main,
          (SELECT group_concat(name || ' ' || n || ' ' || most, ', ') FROM (
            SELECT t.name, count() AS n, CAST(max(c.value) AS INT) AS most
            FROM counter c JOIN process_counter_track t ON t.id = c.track_id
            WHERE t.upid = p.upid AND t.name = 'answered' GROUP BY t.name)) AS counters,
          (SELECT count() FROM counter c JOIN process_counter_track t ON t.id = c.track_id
            WHERE t.upid = p.upid AND t.name = 'waiting') AS waiting
        FROM process p WHERE p.pid > 0" >"$dir/got"
    cat "$dir/got"
    grep -qF "[\"$1\",1,1,\"answered 40 40\",80]" "$dir/got"
    [ "$(grep -o '\["' "$dir/got" | wc -l)" -eq 2 ] # the columns, and one process
}

check service 'request N' 'render N' 'request N failed'
check service_with_tracing 'request, number = N' 'render, number = N' 'request failed, number = N'
