#!/usr/bin/env node
// Runs the queries of a document on a trace, and compares the answers with the tables below the queries.
// Usage: docs.mjs DOCUMENT.md TRACE
// In the document, each block of SQL is followed by a table with the expected answer. Columns whose names begin with
// `ms` are times, which differ from run to run: in the real answer, they must be numbers that are not negative. All
// other columns of the real answer must have the same rows as the table, in any order.

import { readFileSync } from 'node:fs';
import { openTrace } from './trace_processor.mjs';

const [document, trace] = process.argv.slice(2);
if (!trace) {
  console.error('usage: docs.mjs DOCUMENT.md TRACE');
  process.exit(2);
}
const cells = (line) => line.split('|').slice(1, -1).map((cell) => cell.trim());
const asked = [...readFileSync(document, 'utf8').matchAll(/```sql\n(.*?)```\n\n((?:\|[^\n]*\n)+)/gs)]
  .map(([, sql, table]) => ({ sql, table: table.trimEnd().split('\n').map(cells) }));
const sqls = readFileSync(document, 'utf8').match(/```sql\n/g) ?? [];
// If no table follows a query, the line above the query says why: <!-- no table: the reason -->
const exempt = readFileSync(document, 'utf8').match(/<!-- no table: [^\n]*-->\n```sql\n/g) ?? [];
if (asked.length === 0 || asked.length + exempt.length !== sqls.length) {
  throw new Error(`${document} has ${sqls.length} queries, ${asked.length} with tables and ${exempt.length} without`);
}

const processor = openTrace(trace);
for (const { sql, table: [columns, , ...rows] } of asked) {
  const answer = processor.query(sql);
  const isTime = columns.map((column) => column.startsWith('ms'));
  const known = (rows) => rows.map((row) => row.filter((_, at) => !isTime[at]).map(String).join(' | ')).sort().join('\n');
  const wrong = answer.columns.join() !== columns.join() || known(answer.rows) !== known(rows)
    || answer.rows.some((row) => row.some((cell, at) => isTime[at] && !(Number(cell) >= 0)));
  console.log(`${sql}${answer.columns.join(' | ')}\n${answer.rows.map((row) => row.join(' | ')).join('\n')}\n`);
  if (wrong) {
    console.error(`${document} says something else:\n${columns.join(' | ')}\n${rows.map((row) => row.join(' | ')).join('\n')}`);
    process.exitCode = 1;
  }
}
