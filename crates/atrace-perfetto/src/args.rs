//! Encodes typed arguments of an event, in a buffer on the stack.
//!
//! Arguments are encoded before the thread is pinned (`pin.rs`) and before shared memory is touched, because formatting
//! a value runs code of the program. That code may write events, panic or fork. Only the arguments of long events
//! ([`put_scalar`], [`put_text`]) are encoded later, directly into the packet: they need neither formatting nor this
//! buffer. The buffer has a fixed size (`ARGS_MAX`). A text that does not fit is cut and ends in `…`. Arguments that do
//! not fit are left out; an additional argument, `left_out`, then has their number as its value.

#![expect(unsafe_code, reason = "the buffer on the stack is not initialised before use")]

use std::fmt::{self, Write as _};
use std::mem::MaybeUninit;

use atrace_sys::panics::{PANICKED, is_caught};
use atrace_sys::text::{SHORT, as_uninit, cut, put};

use crate::proto::{Writer, varint_len};

/// The size of the buffer for all arguments of an event, in bytes.
pub(crate) const ARGS_MAX: usize = 2048;
/// The number of bytes that are reserved for the argument `left_out`.
const LEFT_OUT_ROOM: usize = 24;
/// The maximum number of bytes that an argument needs in addition to the texts of its name and value.
const HEAD_ROOM: usize = 32;
/// The maximum length of an argument's text value, in bytes.
const VALUE_MAX: usize = 1000;
/// The maximum length in bytes of an event's name or an argument's text in an event that may take several chunks. A
/// longer text is cut.
pub const WHOLE_MAX: usize = 64 << 10;
/// A bit of [`Encoder::left_out`], which is set if a text was cut.
const IS_CUT: u32 = 1 << 31;
/// The maximum length in bytes of the name of a track, and of the name that an event of
/// [`Traced`](crate::event::Traced) has in place of its callsite's name. If a long event must not take several chunks,
/// its name is cut to this length, too.
pub const TRACK_NAME_MAX: usize = 1024;
/// The maximum length of the name of an argument, in bytes.
pub(crate) const NAME_MAX: usize = 64;
/// The characters that end a text that was cut.
const CUT: &str = "…";

/// The name of an encoded argument, as a text or as a number.
#[derive(Clone, Copy, Debug)]
pub enum Key<'a> {
    /// The name as a text.
    Text(&'a str),
    /// The number of the callsite, and the index of the argument at this callsite. The name was interned under a number
    /// that is computed from these two values.
    Interned(u32, u32),
}

/// Returns the interned number of an argument's name: the callsite's number, and the argument's index in the lowest
/// five bits.
#[inline(always)]
pub(crate) const fn key_number(site: u32, at: u32) -> u32 {
    site << 5 | at & 31
}

/// A value that is not a text: the protobuf key of its field, and its bits.
#[derive(Clone, Copy, Debug)]
pub struct Scalar {
    field: u8,
    bits: u64,
}

/// The protobuf key of a `double_value`, the only scalar whose bits are not encoded as a varint.
const FLOAT: u8 = 0x29;

impl From<bool> for Scalar {
    #[inline]
    fn from(value: bool) -> Self {
        Self { field: 0x10, bits: value.into() }
    }
}

impl From<u64> for Scalar {
    #[inline]
    fn from(value: u64) -> Self {
        Self { field: 0x18, bits: value }
    }
}

impl From<i64> for Scalar {
    #[inline]
    fn from(value: i64) -> Self {
        Self { field: 0x20, bits: value.cast_unsigned() }
    }
}

impl From<f64> for Scalar {
    #[inline]
    fn from(value: f64) -> Self {
        Self { field: FLOAT, bits: value.to_bits() }
    }
}

/// Encodes arguments as fields of Perfetto's `TrackEvent`.
pub struct Encoder {
    /// The encoded bytes. Only the first `len` bytes are initialised.
    bytes: [MaybeUninit<u8>; ARGS_MAX],
    len: usize,
    /// The last position at which the text that is being written may end, so that [`CUT`] still fits behind it; 0 after
    /// the text was cut.
    limit: usize,
    /// How many arguments were left out, together with the bit [`IS_CUT`].
    left_out: u32,
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoder").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

impl Encoder {
    /// Creates an encoder without arguments.
    #[inline(always)]
    pub fn new() -> Self {
        // Each element is a constant of its own. If the whole array were one constant, the compiler would copy all of
        // its bytes here.
        Self { bytes: [const { MaybeUninit::uninit() }; ARGS_MAX], len: 0, limit: 0, left_out: 0 }
    }

    const fn room(&self) -> usize {
        ARGS_MAX - LEFT_OUT_ROOM - self.len
    }

    /// Returns the next `len` bytes of the buffer, or `None` if there is no room.
    #[inline(always)]
    fn next(&mut self, len: usize) -> Option<&mut [MaybeUninit<u8>]> {
        self.bytes.get_mut(self.len..self.len + len)
    }

    /// Appends bytes. The caller has checked that there is room.
    #[inline(always)]
    fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        if let Some(place) = self.next(N).and_then(<[_]>::first_chunk_mut::<N>) {
            *place = bytes.map(MaybeUninit::new);
            self.len += N;
        }
    }

    /// Appends bytes. The caller has checked that there is room.
    fn put_all(&mut self, bytes: &[u8]) {
        if let Some(place) = self.next(bytes.len()) {
            place.copy_from_slice(as_uninit(bytes));
            self.len += bytes.len();
        }
    }

    #[inline(always)]
    fn varint(&mut self, mut value: u64) {
        while value > 0x7f {
            self.put([value as u8 | 0x80]);
            value >>= 7;
        }
        self.put([value as u8]);
    }

    /// Writes a length into the two bytes before `start`: the number of encoded bytes from `start` on.
    #[inline(always)]
    fn close(&mut self, start: usize) {
        let len = self.len - start;
        if let Some([low, high]) = self.bytes.get_mut(start - 2..start) {
            low.write(len as u8 | 0x80);
            high.write((len >> 7) as u8);
        }
    }

    /// Adds an argument. `value` writes the argument's value. If there is no room, the argument is left out.
    #[inline(always)]
    fn argument(&mut self, key: Key<'_>, value: impl FnOnce(&mut Self)) {
        let start = self.len + 3;
        // The field debug_annotations: its length, which `close` fills in later, and the argument's name.
        match key {
            Key::Interned(site, at) if self.room() >= HEAD_ROOM => {
                let number = key_number(site, at);
                let [low, middle, high] =
                    [number as u8 | 0x80, (number >> 7) as u8 | 0x80, (number >> 14) as u8];
                self.put([0x22, 0, 0, 0x08, low, middle, high]);
            }
            Key::Text(name) if self.put_name(name) => {}
            _ => {
                self.left_out += 1;
                return;
            }
        }
        value(self);
        self.close(start);
    }

    /// Begins an argument whose name is given as a text. Returns false if there is no room.
    #[inline(never)]
    fn put_name(&mut self, name: &str) -> bool {
        let name = cut(name, NAME_MAX);
        let has_room = self.room() >= HEAD_ROOM + name.len();
        if has_room {
            self.put([0x22, 0, 0, 0x52, name.len() as u8]);
            self.put_all(name.as_bytes());
        }
        has_room
    }

    /// Adds an argument that is not a text.
    #[inline]
    pub fn scalar(&mut self, key: Key<'_>, Scalar { field, bits }: Scalar) {
        self.argument(key, |encoder| {
            encoder.put([field]);
            if field == FLOAT { encoder.put(bits.to_le_bytes()) } else { encoder.varint(bits) }
        });
    }

    /// Adds an argument whose value is the text that `write` writes.
    #[inline(always)]
    fn text(&mut self, key: Key<'_>, write: impl FnOnce(&mut Self)) {
        self.argument(key, |encoder| {
            encoder.put([0x32, 0, 0]);
            let start = encoder.len;
            encoder.limit = start + VALUE_MAX.min(encoder.room()) - CUT.len();
            write(encoder);
            encoder.close(start);
        });
    }

    /// Adds an argument whose value is a text. If the text is cut, it ends in `…`.
    #[inline]
    pub fn str(&mut self, key: Key<'_>, value: &str) {
        self.text(key, |encoder| _ = encoder.write_str(value));
    }

    /// Adds a formatted value. If the formatting panics, the value is the text that was written before the panic,
    /// followed by `<panicked>` if there is room.
    ///
    /// Returns false if the formatting panicked.
    #[inline]
    pub fn formatted(&mut self, key: Key<'_>, value: fmt::Arguments<'_>) -> bool {
        let mut is_whole = true;
        self.text(key, |encoder| {
            // An error means that the text was cut, or that the value's own code returned an error. The text that was
            // written so far stays.
            if is_caught(|| _ = encoder.write_fmt(value)) {
                is_whole = false;
                let _ = encoder.write_str(PANICKED);
            }
        });
        is_whole
    }

    /// Makes the event part of the flow with this number. If there is no room, the flow is left out, and is not counted
    /// in the argument `left_out`.
    #[inline]
    pub fn flow(&mut self, number: u64) {
        if self.room() >= FLOW_ROOM {
            self.put(flow(number));
        }
    }

    /// Adds arguments that were already encoded. If there is no room for all of them, all are left out, and count as
    /// one argument.
    #[inline]
    pub fn encoded(&mut self, bytes: &[u8]) {
        if self.room() >= bytes.len() {
            self.put_all(bytes);
        } else {
            self.left_out += 1;
        }
    }

    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        // SAFETY: `len` is only increased after the bytes up to it were initialised.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr().cast(), self.len) }
    }

    /// Returns whether no argument was left out and no value was cut. Must be called before [`finish`](Self::finish).
    pub const fn is_whole(&self) -> bool {
        self.left_out == 0
    }

    /// Returns the encoded fields. If arguments were left out, the last field is the argument `left_out`, whose value
    /// is the number of these arguments.
    #[inline]
    pub fn finish(&mut self) -> &[u8] {
        if self.left_out > 0 {
            self.say_left_out();
        }
        self.bytes()
    }

    #[cold]
    fn say_left_out(&mut self) {
        const NAME: &[u8] = b"left_out";
        let left_out = (std::mem::take(&mut self.left_out) & !IS_CUT).min(0x3fff);
        if left_out == 0 {
            return;
        }
        self.put([0x22, 5 + NAME.len() as u8, 0x52, NAME.len() as u8]);
        self.put_all(NAME);
        self.put([0x18, left_out as u8 | 0x80, (left_out >> 7) as u8]);
    }

    #[inline(never)]
    fn write_long(&mut self, text: &str) -> fmt::Result {
        if self.limit == 0 {
            return Err(fmt::Error);
        }
        let part = cut(text, self.limit - self.len);
        self.put_all(part.as_bytes());
        if part.len() < text.len() {
            self.put_all(CUT.as_bytes());
            self.limit = 0;
            self.left_out |= IS_CUT;
            return Err(fmt::Error);
        }
        Ok(())
    }
}

/// Appends text to the value that is being written. Text that does not fit is cut, and `…` marks the cut.
impl fmt::Write for Encoder {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // The rare cases are in `write_long`, so this function needs no stack frame.
        if text.len() >= SHORT || self.len + text.len() > self.limit {
            return self.write_long(text);
        }
        if let Some(place) = self.next(text.len()) {
            put(text.as_bytes(), place);
            self.len += text.len();
        }
        Ok(())
    }
}

/// A function that receives encoded bytes, piece by piece.
pub type Put<'a> = dyn FnMut(&[u8]) + 'a;

/// Encodes an argument that is not a text, and passes the bytes to `put`.
pub fn put_scalar(name: &str, Scalar { field, bits }: Scalar, put: &mut Put<'_>) {
    let mut encoded = [0; NAME_MAX + HEAD_ROOM];
    let mut writer = Writer::new(&mut encoded);
    writer.message(4, |argument| {
        argument.bytes(10, cut(name, NAME_MAX).as_bytes());
        let number = u32::from(field >> 3);
        _ = if field == FLOAT { argument.fixed64(number, bits) } else { argument.number(number, bits) };
    });
    put(writer.finish().unwrap_or_default());
}

/// Encodes a text as an argument, and passes the bytes to `put`. A text of more than [`WHOLE_MAX`] bytes is cut and
/// then ends in `…`.
pub fn put_text(name: &str, text: &str, put: &mut Put<'_>) {
    let (text, end) =
        if text.len() > WHOLE_MAX { (cut(text, WHOLE_MAX - CUT.len()), CUT) } else { (text, "") };
    let len = text.len() + end.len();
    let name = cut(name, NAME_MAX).as_bytes();
    let mut encoded = [0; NAME_MAX + HEAD_ROOM];
    let mut writer = Writer::new(&mut encoded);
    writer.length(4, 2 + name.len() + 1 + varint_len(len as u64) + len);
    writer.bytes(10, name).length(6, len);
    put(writer.finish().unwrap_or_default());
    put(text.as_bytes());
    put(end.as_bytes());
}

/// The size of an encoded flow, in bytes.
pub const FLOW_ROOM: usize = 10;

/// Encodes a flow as a field of an event.
#[inline(always)]
pub const fn flow(number: u64) -> [u8; FLOW_ROOM] {
    let [a, b, c, d, e, f, g, h] = number.to_le_bytes();
    [0xf9, 0x02, a, b, c, d, e, f, g, h]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls `encode`, and decodes the written arguments. Returns the name and the value of each argument as texts. The
    /// value of a flow is its number.
    fn read(encode: impl FnOnce(&mut Encoder)) -> Vec<(String, String)> {
        use crate::proto::{Reader, Value};

        let mut encoder = Encoder::new();
        encode(&mut encoder);
        let mut fields = Reader::new(encoder.finish());
        let text = |bytes: &[u8]| str::from_utf8(bytes).unwrap().to_owned();
        let read: Vec<_> = fields
            .by_ref()
            .map(|(field, value)| {
                if field == 47 {
                    return ("flow".to_owned(), value.number().to_string());
                }
                assert_eq!(field, 4);
                let mut fields = Reader::new(value.bytes());
                let name = match fields.next().unwrap() {
                    (10, name) => text(name.bytes()),
                    (1, number) => format!("#{}", number.number()),
                    other => panic!("{other:?}"),
                };
                let value = match fields.next().unwrap() {
                    (2, value) => (value.number() == 1).to_string(),
                    (3, value) => value.number().to_string(),
                    (4, value) => value.number().cast_signed().to_string(),
                    (5, Value::Fixed64(bits)) => format!("{:?}", f64::from_bits(bits)),
                    (6, value) => text(value.bytes()),
                    other => panic!("{other:?}"),
                };
                assert!(fields.next().is_none() && fields.is_whole());
                (name, value)
            })
            .collect();
        assert!(fields.is_whole());
        read
    }

    #[test]
    fn arguments_have_their_types() {
        let found = read(|encoder| {
            encoder.scalar(Key::Text("yes"), true.into());
            encoder.scalar(Key::Text("int"), i64::MIN.into());
            encoder.scalar(Key::Text("uint"), u64::MAX.into());
            encoder.scalar(Key::Text("float"), (-0.5).into());
            encoder.str(Key::Text("str"), "text");
            encoder.str(Key::Text(""), "");
            encoder.flow(u64::MAX - 1);
            encoder.scalar(Key::Interned(BEYOND - 1, 31), 1_i64.into());
            encoder.scalar(Key::Interned(FIRST, 0), (1_u64 << 40).into());
            assert!(encoder.formatted(Key::Text("debug"), format_args!("{:?}", Some(7))));
            encoder.encoded(&flow(7));
        });
        let expected = [
            ("yes", "true"),
            ("int", "-9223372036854775808"),
            ("uint", "18446744073709551615"),
            ("float", "-0.5"),
            ("str", "text"),
            ("", ""),
            ("flow", "18446744073709551614"),
            ("#524287", "1"),
            ("#1024", "1099511627776"),
            ("debug", "Some(7)"),
            ("flow", "7"),
        ];
        assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn what_has_no_room_is_cut_and_said_so() {
        let long = "ü".repeat(5000);
        let name = "n".repeat(200);
        let found = read(|encoder| {
            for _ in 0..40 {
                encoder.str(Key::Text(&name), &long);
                encoder.scalar(Key::Text("after"), (-1_i64).into());
            }
            encoder.flow(1);
        });
        assert_eq!(found[0].0, "n".repeat(NAME_MAX));
        let cut = found[0].1.strip_suffix(CUT).unwrap();
        assert!(cut.len() > VALUE_MAX - 8 && cut.chars().all(|c| c == 'ü'));
        assert_eq!(found[1], ("after".to_owned(), "-1".to_owned()));
        assert!(found[2].1.ends_with(CUT));
        let (name, left_out) = found.last().unwrap();
        let arguments = found.iter().filter(|(name, _)| name != "flow").count() - 1;
        assert_eq!((name.as_str(), left_out.parse::<usize>().unwrap()), ("left_out", 80 - arguments));
        // All lengths; only some of them for Miri, which would take minutes.
        for len in (0..=ARGS_MAX).step_by(if cfg!(miri) { 31 } else { 1 }) {
            let found = read(|encoder| {
                encoder.str(Key::Text("first"), &long[..len & !1]);
                encoder.str(Key::Text("second"), &long[..len & !1]);
                encoder.scalar(Key::Text("third"), true.into());
            });
            assert!(found.len() >= 2, "{found:?}");
        }
    }

    #[test]
    fn a_value_that_panics_leaves_what_it_wrote() {
        struct Panics;

        impl fmt::Debug for Panics {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("half")?;
                std::panic::resume_unwind(Box::new(()))
            }
        }

        let found = read(|encoder| {
            assert!(!encoder.formatted(Key::Text("value"), format_args!("{Panics:?}")));
            encoder.scalar(Key::Text("after"), false.into());
        });
        let text = |text: &str| text.to_owned();
        assert_eq!(found, [(text("value"), text("half<panicked>")), (text("after"), text("false"))]);
    }

    use crate::callsite::{BEYOND, FIRST};
}
