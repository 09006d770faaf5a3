#!/bin/sh
# Lets `atrace run` record each example service with both backends, and checks the traces with Perfetto's trace
# processor.
# Needs root, tracefs, node and the files that setup.sh fetches.
set -eu
cd "$(dirname "$0")/../.."
built=${CARGO_TARGET_DIR:-target}/debug
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM

# Without -p, cargo uses what the tests built. With -p, some dependencies would have other features, and would be built
# again.
cargo build --quiet --bin atrace --example service --example service_with_tracing

# expect REQUEST RENDER FAILED DRAW QUEUED: prints the expected content of a trace whose events have these names. An N
# in a name stands for a number.
expect() {
    node - "$@" <<'NODE'
const [request, render, failed, draw, queued] = process.argv.slice(2);
const numbers = [...Array(40).keys()];
const all = (pattern, numbers, more) => pattern.includes('N')
  ? numbers.map((n) => ({ name: pattern.replace('N', n), ...more }))
  : [{ name: pattern, count: numbers.length, ...more }];
console.log(JSON.stringify({
  slices: [
    { name: 'parse', count: 40 }, { name: 'read', count: 40 }, ...all(render, numbers),
    ...(draw.includes('N') ? all(draw, [1, 2, 3], { count: 9 }).concat(all(draw, [4], { count: 10 })) : all(draw, numbers.slice(3))),
  ],
  async: [...all(request, numbers, { track: 'requests' }), ...(queued ? all(queued, numbers, { track: 'requests' }) : [])],
  instants: [{ name: 'ready' }, ...all(failed, [12, 25, 38])],
}));
NODE
}

# check EXAMPLE: records the example, and compares its traces with the expectations in $dir/ftrace.json and
# $dir/pftrace.json.
check() {
    # Records the example as the program of a user without special rights, into the kernel's buffer, by root's command.
    cp "$built/examples/$1" "$dir/$1" && chmod 755 "$dir" "$dir/$1"
    env -u SUDO_GID SUDO_UID=65534 "$built/atrace" run --kernel -o "$dir/$1.ftrace" -- "$dir/$1" 2>"$dir/said"
    # Records it by a command without special rights, through Perfetto's protocol.
    mkdir -m 777 "$dir/place" && cp "$built/atrace" "$dir" && chmod 755 "$dir/atrace"
    (cd "$dir/place" && env -u SUDO_UID setpriv --reuid 65534 --regid 65534 --clear-groups \
        "$dir/atrace" run -o "$1.pftrace" -- "$dir/$1" 2>>"$dir/said")
    mv "$dir/place/$1.pftrace" "$dir" && rmdir "$dir/place"
    cat "$dir/said"
    [ "$(grep -c 'events written, none lost$' "$dir/said")" -eq 2 ]
    node .ci/perfetto/check.mjs "$dir/$1.ftrace" "$dir/ftrace.json"
    node .ci/perfetto/check.mjs "$dir/$1.pftrace" "$dir/pftrace.json"
    # The trace must have two counters of one process, in which the main thread and several other threads wrote events.
    # No other process wrote events.
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
    [ "$(grep -o '\["' "$dir/got" | wc -l)" -eq 2 ] # the columns' names, and the row of one process
}

expect 'request N' 'render N' 'request N failed' draw | tee "$dir/ftrace.json" >"$dir/pftrace.json"
check service
# With the kernel's buffer, the values of `tracing` are text in the event's name. With the service, they are typed
# arguments.
expect 'request, number = N' 'render, number = N' 'request failed, number = N' 'draw, pages = N' 'queued, number = N' >"$dir/ftrace.json"
expect request render 'request failed' draw queued >"$dir/pftrace.json"
check service_with_tracing
node .ci/perfetto/query.mjs "$dir/service_with_tracing.pftrace" "
    SELECT s.name, count(DISTINCT a.int_value) AS numbers FROM slice s JOIN args a USING (arg_set_id)
    WHERE a.key = 'debug.number' GROUP BY s.name ORDER BY s.name" >"$dir/got"
cat "$dir/got"
for row in '["render",40]' '["request",40]' '["request failed",3]'; do
    grep -qF "$row" "$dir/got"
done
# Checks the queries and answers in docs/perfetto.md.
node .ci/perfetto/docs.mjs docs/perfetto.md "$dir/service_with_tracing.pftrace"

# Checks a trace with events of the kernel and of the program: it must have the same events of the program, threads with
# states, and no fault. "mismatched_sched_switch_tids" counts context switches that the kernel did not write, which are
# no fault of the trace.
"$built/atrace" run -c sched -o "$dir/kernel.pftrace" -- "$built/examples/service_with_tracing"
node .ci/perfetto/query.mjs "$dir/kernel.pftrace" "
    SELECT (SELECT count(DISTINCT state) > 2 FROM thread_state JOIN thread USING (utid) WHERE thread.name = 'worker') AS states,
      (SELECT count(DISTINCT a.int_value) FROM slice s JOIN args a USING (arg_set_id)
        WHERE s.name = 'render' AND a.key = 'debug.number') AS numbers,
      (SELECT count() > 0 FROM flow) AS flows,
      (SELECT count() FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0
        AND name != 'mismatched_sched_switch_tids') AS faults" >"$dir/got"
cat "$dir/got"
grep -qF '[1,40,1,0]' "$dir/got"
