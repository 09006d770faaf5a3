// Perfetto's trace processor (WebAssembly) in Node, without a browser and without Perfetto's own JS.
//
// The module exports two functions: `trace_processor_rpc_init(reply, size)` allocates a request
// buffer, and `trace_processor_on_rpc_request(n)` consumes n bytes of it and calls `reply(ptr, len)`
// with the answer. Both directions are a stream of TraceProcessorRpc protobuf messages
// (protos/perfetto/trace_processor/trace_processor.proto in Perfetto's tree).

import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const REQUEST_BUFFER = 4 << 20;

/** The path to which setup.sh copies the module. */
export function wasmPath() {
  const dir = process.env.PERFETTO_DIR
    ?? fileURLToPath(new URL('../../target/perfetto', import.meta.url));
  return `${dir}/trace_processor.wasm`;
}

// --- protobuf ---------------------------------------------------------------------------------

// Bytes that are not UTF-8 become U+FFFD. A name may begin with U+FEFF.
const utf8 = new TextDecoder('utf-8', { ignoreBOM: true });

function varint(n) {
  const out = [];
  for (; n > 127; n = Math.floor(n / 128)) out.push((n % 128) | 128);
  out.push(n);
  return Buffer.from(out);
}

const numberField = (field, n) => Buffer.concat([varint(field * 8), varint(n)]);

function bytesField(field, bytes) {
  const data = Buffer.from(bytes);
  return Buffer.concat([varint(field * 8 + 2), varint(data.length), data]);
}

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.at = 0;
  }
  get more() { return this.at < this.bytes.length; }
  /** Returns the next varint as an unsigned 64-bit number. */
  varint() {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = this.view.getUint8(this.at++);
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return BigInt.asUintN(64, value);
    }
  }
  take(n) {
    if (this.at + n > this.bytes.length) throw new Error('truncated protobuf');
    return this.bytes.subarray(this.at, this.at += n);
  }
  /** Calls handlers[field](value); the value of a length-delimited field is its bytes. */
  message(handlers) {
    while (this.more) {
      const key = Number(this.varint());
      let value;
      switch (key & 7) {
        case 0: value = this.varint(); break;
        case 1: value = this.take(8); break;
        case 2: value = this.take(Number(this.varint())); break;
        case 5: value = this.take(4); break;
        default: throw new Error(`protobuf wire type ${key & 7}`);
      }
      handlers[key >>> 3]?.(value);
    }
  }
  *varints() { while (this.more) yield this.varint(); }
}

const message = (bytes, handlers) => new Reader(bytes).message(handlers);

/** Returns an int64 as a number if that is exact, otherwise as a BigInt. */
function int64(bits) {
  const value = BigInt.asIntN(64, bits);
  return Number.isSafeInteger(Number(value)) ? Number(value) : value;
}

/** Adds a CellsBatch to `cells`: a list of types, and a separate list of values for each type. */
function readBatch(bytes, cells) {
  let types = [], ints = [], doubles = [], blobs = [], strings = [];
  message(bytes, {
    1: (b) => { types = [...new Reader(b).varints()].map(Number); },
    2: (b) => { ints = [...new Reader(b).varints()].map(int64); },
    3: (b) => {
      const view = new DataView(b.buffer, b.byteOffset, b.byteLength);
      doubles = Array.from({ length: b.length / 8 }, (_, i) => view.getFloat64(i * 8, true));
    },
    4: (b) => blobs.push(Buffer.from(b).toString('hex')),
    5: (b) => { strings = utf8.decode(b).split('\0'); }, // each one NUL-terminated
  });
  const lists = { 2: ints, 3: doubles, 4: strings, 5: blobs };
  const next = { 2: 0, 3: 0, 4: 0, 5: 0 };
  for (const type of types) {
    if (type !== 1 && !(type in lists)) throw new Error(`unknown cell type ${type}`);
    cells.push(type === 1 ? null : lists[type][next[type]++]);
  }
}

// --- the module's surroundings ----------------------------------------------------------------

/** Returns the imports that an Emscripten module needs that uses no files, clocks or terminal. */
function surroundings(stderr) {
  const env = {};
  const bind = (memory) => { env.memory = memory; };
  // `memory.grow` detaches existing views, so a new one is created each time.
  const view = () => new DataView(env.memory.buffer);
  const text = (at) => {
    if (at === 0) return '?';
    const bytes = new Uint8Array(env.memory.buffer, at >>> 0);
    return utf8.decode(bytes.subarray(0, bytes.indexOf(0)));
  };
  const fatal = (why) => { throw new Error(why); };
  const EBADF = 8, ENOSYS = 52; // WASI's numbers

  const known = {
    emscripten_get_now: () => performance.now(),
    emscripten_date_now: () => Date.now(),
    emscripten_err: (at) => { stderr.push(text(at)); },
    emscripten_get_heap_max: () => 0xffff0000 | 0,
    emscripten_resize_heap: (size) => {
      const missing = (size >>> 0) - env.memory.buffer.byteLength;
      try {
        env.memory.grow(Math.ceil(Math.max(missing, 16 << 20) / 65536));
        return 1;
      } catch {
        return 0;
      }
    },
    __assert_fail: (what, file, line) => fatal(`assertion failed: ${text(what)} (${text(file)}:${line})`),
    _abort_js: () => fatal('trace processor aborted'),
    _tzset_js: (zone, daylight, std, dst) => { // UTC
      view().setInt32(zone >>> 0, 0, true);
      view().setInt32(daylight >>> 0, 0, true);
      for (const at of [std, dst]) new Uint8Array(env.memory.buffer).set([85, 84, 67, 0], at >>> 0);
    },
    clock_time_get: (_clock, _precision, out) => {
      view().setBigUint64(out >>> 0, BigInt(Math.round(Date.now() * 1e6)), true);
      return 0;
    },
    environ_sizes_get: (count, size) => {
      view().setUint32(count >>> 0, 0, true);
      view().setUint32(size >>> 0, 0, true);
      return 0;
    },
    environ_get: () => 0,
    fd_write: (fd, vectors, count, written) => {
      if (fd !== 1 && fd !== 2) return EBADF;
      let total = 0;
      for (let i = 0; i < count; i++) {
        const at = view().getUint32((vectors >>> 0) + i * 8, true);
        const length = view().getUint32((vectors >>> 0) + i * 8 + 4, true);
        stderr.push(utf8.decode(new Uint8Array(env.memory.buffer, at, length)));
        total += length;
      }
      view().setUint32(written >>> 0, total, true);
      return 0;
    },
  };
  // All other imports concern files and time zones, which are not needed. System calls return -errno.
  const functions = (module) => Object.fromEntries(
    WebAssembly.Module.imports(module).filter((i) => i.kind === 'function').map(({ name }) =>
      [name, known[name] ?? (() => (name.startsWith('__syscall_') ? -ENOSYS : ENOSYS))]));
  return { bind, functions };
}

/** Wraps a JS function as a wasm function (i32, i32) -> (). A wasm table accepts only wasm functions. */
function tableFunction(f) {
  const shim = new WebAssembly.Module(Uint8Array.of(
    0x00, 0x61, 0x73, 0x6d, 0x01, 0x00, 0x00, 0x00, // magic, version
    0x01, 0x06, 0x01, 0x60, 0x02, 0x7f, 0x7f, 0x00, // type 0: (i32, i32) -> ()
    0x02, 0x07, 0x01, 0x01, 0x65, 0x01, 0x66, 0x00, 0x00, // import "e" "f": type 0
    0x07, 0x05, 0x01, 0x01, 0x66, 0x00, 0x00, // export it as "f"
  ));
  return new WebAssembly.Instance(shim, { e: { f } }).exports.f;
}

// --- the trace processor ----------------------------------------------------------------------

const APPEND_TRACE_DATA = 1, FINALIZE_TRACE_DATA = 2, QUERY_STREAMING = 3;
const ARGS_OF = { [APPEND_TRACE_DATA]: 101, [QUERY_STREAMING]: 103 };

export class TraceProcessor {
  #exports; #request; #replies = []; #sequence = 0; #stderr = [];

  /** Loads the module and one complete trace. */
  constructor(trace) {
    let bytes;
    try {
      bytes = readFileSync(wasmPath());
    } catch (error) {
      throw new Error(`no ${wasmPath()} (${error.code}): run .ci/perfetto/setup.sh`);
    }
    const { bind, functions } = surroundings(this.#stderr);
    const module = new WebAssembly.Module(bytes);
    const imports = functions(module);
    const wasm = new WebAssembly.Instance(module, { env: imports, wasi_snapshot_preview1: imports }).exports;
    this.#exports = wasm;
    bind(wasm.memory);
    wasm.emscripten_stack_init();
    wasm.__wasm_call_ctors();

    const table = wasm.__indirect_function_table;
    const slot = table.grow(1);
    table.set(slot, tableFunction((at, length) => {
      this.#replies.push(new Uint8Array(wasm.memory.buffer, at >>> 0, length >>> 0).slice());
    }));
    this.#request = wasm.trace_processor_rpc_init(slot, REQUEST_BUFFER) >>> 0;

    for (let at = 0; at < trace.length; at += REQUEST_BUFFER) {
      this.#call(APPEND_TRACE_DATA, trace.subarray(at, at + REQUEST_BUFFER));
    }
    this.#call(FINALIZE_TRACE_DATA);
  }

  /** Runs one SQL statement and returns `{columns: [name…], rows: [[cell…]…]}`. */
  query(sql) {
    const columns = [], cells = [];
    let failure = '', last = false;
    for (const result of this.#call(QUERY_STREAMING, bytesField(1, sql))) {
      message(result, {
        1: (b) => columns.push(utf8.decode(b)),
        2: (b) => { failure = utf8.decode(b); },
        3: (b) => {
          readBatch(b, cells);
          message(b, { 6: (flag) => { last = flag === 1n; } });
        },
      });
    }
    if (failure) throw new Error(failure);
    if (!last) throw new Error('trace processor: incomplete result');
    const rows = [];
    for (let i = 0; i < cells.length; i += columns.length) rows.push(cells.slice(i, i + columns.length));
    return { columns, rows };
  }

  /** Like `query`, with each row as an object. */
  rows(sql) {
    const { columns, rows } = this.query(sql);
    return rows.map((row) => Object.fromEntries(row.map((cell, i) => [columns[i], cell])));
  }

  /** Sends one request. Returns the query results in the replies. */
  #call(method, args) {
    const rpc = Buffer.concat([
      numberField(1, this.#sequence++),
      numberField(2, method),
      args === undefined ? Buffer.alloc(0) : bytesField(ARGS_OF[method], args),
    ]);
    const stream = bytesField(1, rpc);
    this.#replies = [];
    try {
      for (let at = 0; at < stream.length; at += REQUEST_BUFFER) {
        const part = stream.subarray(at, at + REQUEST_BUFFER);
        new Uint8Array(this.#exports.memory.buffer).set(part, this.#request);
        this.#exports.trace_processor_on_rpc_request(part.length);
      }
    } catch (error) { // a wasm trap, or the abort above, whose reason is in the module's output
      throw new Error([error.message, ...this.#stderr].join('\n'), { cause: error });
    }
    const results = [];
    message(Buffer.concat(this.#replies), {
      1: (reply) => message(reply, {
        5: (b) => { throw new Error(`trace processor: ${utf8.decode(b)}`); },
        4: () => { throw new Error(`trace processor: unknown method ${method}`); },
        201: (b) => message(b, { 2: (e) => { throw new Error(`trace not read: ${utf8.decode(e)}`); } }),
        203: (b) => results.push(b),
      }),
    });
    return results;
  }
}

/** Opens a trace file. */
export function openTrace(path) {
  let trace;
  try {
    trace = readFileSync(path);
  } catch (error) {
    throw new Error(`cannot read the trace: ${error.message}`);
  }
  return new TraceProcessor(trace);
}

/** Encodes as JSON with the full value of every int64: JSON has no limit, but JSON.stringify does not support BigInt. */
export function toJson(value) {
  if (typeof value === 'bigint') return String(value);
  if (Array.isArray(value)) return `[${value.map(toJson).join(',')}]`;
  if (value !== null && typeof value === 'object') {
    const fields = Object.entries(value).filter(([, v]) => v !== undefined);
    return `{${fields.map(([k, v]) => `${JSON.stringify(k)}:${toJson(v)}`).join(',')}}`;
  }
  return JSON.stringify(value);
}
