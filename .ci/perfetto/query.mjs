#!/usr/bin/env node
// Runs SQL on a trace with Perfetto's trace processor. Prints one line of JSON for each statement.
// Usage: query.mjs TRACE SQL [SQL …]

import { openTrace, toJson } from './trace_processor.mjs';

const [trace, ...statements] = process.argv.slice(2);
if (statements.length === 0) {
  console.error("usage: query.mjs TRACE 'SQL' ['SQL' …]");
  process.exit(2);
}
try {
  const processor = openTrace(trace);
  for (const sql of statements) console.log(toJson(processor.query(sql)));
} catch (error) {
  console.error(`query.mjs: ${error.message}`);
  process.exitCode = 1;
}
