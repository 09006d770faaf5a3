#!/usr/bin/env node
// Compares Perfetto's reading of a trace with the expected content.
// Usage: check.mjs TRACE EXPECTATIONS.json [PID]
// Exit status: 0 as expected, 1 differences (printed), 2 could not compare.
//
// EXPECTATIONS.json (every key is optional; a key that isn't listed here is an error):
//   {
//     "pid": 42,        the process of all entries without a "pid"; PID overrides it
//     "exact": true,    every slice, instant and counter of the trace must be named by some entry
//     "slices":   [{"name": "a", "count": 1, "dur": "positive", "tid": 42, "thread": "main", "depth": 0, "parent": "b"}],
//     "async":    [{"name": "a", "count": 1, "dur": "positive", "track": "t", "cookie": 7}],
//     "instants": [{"name": "a", "count": 1, "track": "t", "tid": 42, "thread": "main", "parent": "b"}],
//     "counters": [{"name": "c", "values": [1, 2]}],
//     "stats":    {"systrace_parse_failure": 0}
//   }
// - "slices" are ATrace's messages B and E. "async" are S and F without "track", and G and H with a "track"; "cookie"
//   is for S and F only (Perfetto does not keep other cookies), and is a string if it exceeds 2^53. "instants" are I
//   without "track", and N with a "track".
// - The default of "count" is 1, and that of "dur" is "positive". "closed" also allows 0: text traces have
//   microseconds, so a short slice may begin and end at the same time. "open" means that the slice began and never
//   ended.
// - "parent" is the name of the enclosing slice, or null if there is none.
// - "values" are all values of the counter in order. Perfetto stores doubles.
// - Any statistic of severity error or data_loss that is not 0 is a difference, unless "stats" lists its value.

import { readFileSync } from 'node:fs';
import { openTrace, toJson } from './trace_processor.mjs';

const TOP = ['pid', 'exact', 'slices', 'async', 'instants', 'counters', 'stats'];
const KEYS = {
  slices: ['name', 'pid', 'count', 'dur', 'tid', 'thread', 'depth', 'parent'],
  async: ['name', 'pid', 'count', 'dur', 'track', 'cookie'],
  instants: ['name', 'pid', 'count', 'track', 'tid', 'thread', 'parent'],
  counters: ['name', 'pid', 'values'],
};
const DURATIONS = {
  positive: (dur) => dur > 0,
  closed: (dur) => dur >= 0,
  open: (dur) => dur === -1,
};
// The tracks of ATrace, and those of Perfetto's own events.
const THREAD = ['thread_execution', 'thread_track_event'], ASYNC = ['atrace_async_slice', 'process_merged_track_event'];
const NAMED = ['atrace_async_slice_for_track', 'process_merged_track_event'];

const SLICES = `
  SELECT s.name, s.ts, s.dur, s.depth, parent.name AS parent, t.type, t.name AS track,
    th.tid, th.name AS thread, p.pid,
    (SELECT int_value FROM args WHERE arg_set_id = s.arg_set_id AND key = 'cookie') AS cookie
  FROM slice s JOIN track t ON t.id = s.track_id
    LEFT JOIN slice parent ON parent.id = s.parent_id
    LEFT JOIN thread_track tt ON tt.id = s.track_id LEFT JOIN thread th ON th.utid = tt.utid
    LEFT JOIN process_track pt ON pt.id = s.track_id
    LEFT JOIN process p ON p.upid = coalesce(pt.upid, th.upid)
  ORDER BY s.ts, s.id`;
const COUNTERS = `
  SELECT t.name, p.pid, c.value FROM counter c JOIN counter_track t ON t.id = c.track_id
    LEFT JOIN process_counter_track pt ON pt.id = c.track_id LEFT JOIN process p ON p.upid = pt.upid
  ORDER BY c.ts, c.id`;
const STATS = 'SELECT name, idx, severity, value FROM stats';

const MOST_NAMED = 20; // the number of unexpected rows that are printed one by one

function onlyKeys(object, allowed, where) {
  if (object === null || typeof object !== 'object' || Array.isArray(object)) {
    throw new Error(`${where}: an object is needed, not ${JSON.stringify(object)}`);
  }
  const unknown = Object.keys(object).filter((key) => !allowed.includes(key));
  if (unknown.length) throw new Error(`${where}: unknown key ${unknown.join(', ')}`);
}

/** Tells whether a cell has the value of an entry. Entries give large integers as strings. */
const equal = (wanted, cell) => wanted === cell
  || (wanted !== null && cell !== null && String(wanted) === String(cell));

/** Tells whether `row` has the type and place of `want`. The duration is not compared. */
function matches(kind, want, row) {
  const types = kind === 'slices' ? THREAD
    : want.track !== undefined ? NAMED
    : kind === 'async' ? ASYNC
    : THREAD;
  // As in Perfetto's tables, an instant is a slice without duration.
  const length = kind === 'instants' ? row.dur === 0 : want.dur === 'closed' || row.dur !== 0;
  const same = ['name', 'pid', 'tid', 'thread', 'depth', 'parent', 'track', 'cookie']
    .every((key) => want[key] === undefined || equal(want[key], row[key]));
  return types.includes(row.type) && length && same;
}

function differences(trace, expectations) {
  const found = [];
  const slices = trace.rows(SLICES), counters = trace.rows(COUNTERS);
  const claimed = new Set();
  const entries = (kind) => (expectations[kind] ?? []).map((entry, i) => {
    const where = `${kind}[${i}]`;
    onlyKeys(entry, KEYS[kind], where);
    const want = { pid: expectations.pid, ...entry };
    if (typeof want.name !== 'string') throw new Error(`${where}: no name`);
    if (want.track !== undefined && want.cookie !== undefined) {
      throw new Error(`${where}: Perfetto keeps no cookies of named tracks`);
    }
    return { want, where: `${where} ${toJson(want)}` };
  });

  for (const kind of ['slices', 'async', 'instants']) {
    for (const { want, where } of entries(kind)) {
      want.count ??= 1;
      const right = kind === 'instants' ? () => true : DURATIONS[want.dur ??= 'positive'];
      if (!right) throw new Error(`${where}: dur is one of ${Object.keys(DURATIONS).join(', ')}`);
      const rows = slices.filter((row) => matches(kind, want, row));
      rows.forEach((row) => claimed.add(row));
      if (rows.length !== want.count) {
        found.push(`${where}: ${want.count} expected, ${rows.length} found`);
        for (const row of slices.filter((row) => row.name === want.name && !rows.includes(row))) {
          found.push(`    elsewhere: ${toJson(row)}`);
        }
      }
      for (const row of rows) if (!right(row.dur)) found.push(`${where}: not ${want.dur}: ${toJson(row)}`);
    }
  }

  for (const { want, where } of entries('counters')) {
    if (!Array.isArray(want.values)) throw new Error(`${where}: no values`);
    const rows = counters.filter((row) => row.name === want.name
      && (want.pid === undefined || equal(want.pid, row.pid)));
    rows.forEach((row) => claimed.add(row));
    const values = rows.map((row) => Number(row.value)); // Perfetto stores doubles.
    if (toJson(values) !== toJson(want.values.map(Number))) found.push(`${where}: found ${toJson(values)}`);
  }

  if (expectations.exact) {
    const others = [...slices, ...counters].filter((row) => !claimed.has(row));
    others.slice(0, MOST_NAMED).forEach((row) => found.push(`not expected: ${toJson(row)}`));
    if (others.length > MOST_NAMED) found.push(`not expected: ${others.length - MOST_NAMED} more`);
  }

  const stats = trace.rows(STATS);
  const wanted = expectations.stats ?? {};
  for (const name of Object.keys(wanted)) {
    if (!stats.some((stat) => stat.name === name)) throw new Error(`stats: Perfetto has no ${name}`);
  }
  for (const { name, idx, severity, value } of stats) {
    const want = wanted[name] ?? (['error', 'data_loss'].includes(severity) ? 0 : value);
    if (value !== want) found.push(`stat ${name}${idx === null ? '' : `[${idx}]`}: ${want} expected, ${value} found`);
  }
  return { found, summary: `${slices.length} slices and instants, ${counters.length} counter values` };
}

const [tracePath, expectationsPath, pid] = process.argv.slice(2);
if (expectationsPath === undefined) {
  console.error('usage: check.mjs TRACE EXPECTATIONS.json [PID]');
  process.exit(2);
}
try {
  const expectations = JSON.parse(readFileSync(expectationsPath, 'utf8'));
  onlyKeys(expectations, TOP, expectationsPath);
  if (pid !== undefined) expectations.pid = Number(pid);
  if (Number.isNaN(expectations.pid)) throw new Error(`not a pid: ${pid}`);
  const { found, summary } = differences(openTrace(tracePath), expectations);
  found.forEach((line) => console.log(line));
  if (found.length === 0) console.log(`as expected: ${summary}`);
  process.exitCode = found.length === 0 ? 0 : 1;
} catch (error) {
  console.error(`check.mjs: ${error.message}`);
  process.exitCode = 2;
}
