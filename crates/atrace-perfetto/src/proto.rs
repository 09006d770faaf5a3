//! The protobuf encoding, as far as Perfetto's messages need it: [`Writer`] and [`Reader`].
//!
//! A message is a sequence of fields. A field consists of a key (the field's number and the kind of encoding of its
//! value) and the value. Both types work on memory of the caller and check all bounds. Each type has one kind of
//! failure: if a writer has too little room, [`Writer::finish`] returns `None`; a reader stops at the first invalid
//! field.
//!
//! Source: protobuf.dev, "Encoding".

const VARINT: u8 = 0;
const FIXED64: u8 = 1;
const BYTES: u8 = 2;
const FIXED32: u8 = 5;

/// The size of the longest varint, in bytes.
const VARINT_MAX: usize = 10;

/// Writes protobuf fields one after the other.
#[derive(Debug)]
pub struct Writer<'a> {
    bytes: &'a mut [u8],
    len: usize,
    is_cut: bool,
}

impl<'a> Writer<'a> {
    /// Creates a writer that fills `bytes` from the start.
    pub fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, len: 0, is_cut: false }
    }

    /// Returns the written bytes, or `None` if some fields did not fit.
    pub fn finish(self) -> Option<&'a [u8]> {
        let Self { bytes, len, is_cut } = self;
        if is_cut { None } else { bytes.get(..len) }
    }

    /// Appends protobuf fields that are already encoded.
    #[inline(never)]
    pub fn raw(&mut self, more: &[u8]) {
        match self.bytes.get_mut(self.len..self.len + more.len()) {
            Some(room) if !self.is_cut => {
                room.copy_from_slice(more);
                self.len += more.len();
            }
            _ => self.is_cut = true,
        }
    }

    /// Writes a varint, byte by byte: most varints have one byte, and copying that byte as a slice would be a
    /// function call.
    #[inline(never)]
    fn varint(&mut self, mut value: u64) {
        loop {
            let Some(place) = self.bytes.get_mut(self.len) else {
                self.is_cut = true;
                return;
            };
            self.len += 1;
            if value <= 0x7f {
                *place = value as u8;
                return;
            }
            *place = value as u8 | 0x80;
            value >>= 7;
        }
    }

    fn key(&mut self, field: u32, kind: u8) {
        self.varint(u64::from(field) << 3 | u64::from(kind));
    }

    /// Writes a field whose value is an unsigned number, a signed number in two's complement, a `bool` or an enum.
    #[inline(never)]
    pub fn number(&mut self, field: u32, value: u64) -> &mut Self {
        self.key(field, VARINT);
        self.varint(value);
        self
    }

    /// Writes a field of the type `fixed64` or `double`, whose value is given as bits.
    #[inline(never)]
    pub fn fixed64(&mut self, field: u32, bits: u64) -> &mut Self {
        self.key(field, FIXED64);
        self.raw(&bits.to_le_bytes());
        self
    }

    /// Writes a field whose value is a string, bytes, or an encoded message.
    #[inline(never)]
    pub fn bytes(&mut self, field: u32, value: &[u8]) -> &mut Self {
        self.key(field, BYTES);
        self.varint(value.len() as u64);
        self.raw(value);
        self
    }

    /// Writes the key and the length of a field of `len` bytes. The caller writes the bytes of the field itself.
    pub fn length(&mut self, field: u32, len: usize) {
        self.key(field, BYTES);
        self.varint(len as u64);
    }

    /// Writes a field whose value is a message. `write` writes the fields of this message.
    #[inline(always)]
    pub fn message(&mut self, field: u32, write: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.begin_message(field);
        write(self);
        self.end_message(start);
        self
    }

    /// Begins a message, and reserves a byte for its length. This function and `end_message` are not inlined, because
    /// `message`, which calls them, is inlined into many callers.
    #[inline(never)]
    fn begin_message(&mut self, field: u32) -> usize {
        self.key(field, BYTES);
        let start = self.len;
        self.varint(0); // A byte for the length. `end_message` fills it in, and adds bytes if necessary.
        start
    }

    #[inline(never)]
    fn end_message(&mut self, start: usize) {
        if self.is_cut {
            return;
        }
        let len = self.len - start - 1;
        let more = varint_len(len as u64) - 1;
        let end = self.len + more;
        let Some(room) = self.bytes.get_mut(start + 1..end) else {
            self.is_cut = true;
            return;
        };
        if more > 0 {
            room.copy_within(..len, more);
        }
        self.len = start;
        self.varint(len as u64);
        self.len = end;
    }
}

/// Returns the number of bytes of a varint.
pub(crate) const fn varint_len(value: u64) -> usize {
    ((u64::BITS - (value | 1).leading_zeros()) as usize).div_ceil(7)
}

/// The encoded value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A varint: a number of any width and sign.
    Number(u64),
    /// Eight bytes.
    Fixed64(u64),
    /// A string, bytes, a message, or packed numbers.
    Bytes(&'a [u8]),
    /// Four bytes.
    Fixed32(u32),
}

impl<'a> Value<'a> {
    /// Returns the number, or 0 if the value consists of bytes.
    pub fn number(self) -> u64 {
        match self {
            Self::Number(value) | Self::Fixed64(value) => value,
            Self::Fixed32(value) => value.into(),
            Self::Bytes(_) => 0,
        }
    }

    /// Returns the bytes, or an empty slice if the value is a number.
    pub fn bytes(self) -> &'a [u8] {
        if let Self::Bytes(bytes) = self { bytes } else { &[] }
    }
}

/// Reads a varint of at most `most` bytes (at most ten). `byte` returns the byte at the given index; it is called once
/// for each index, in order. Returns the varint's value and its length in bytes, or `None` if the varint is longer than
/// `most` or ends where `byte` returns `None`.
#[inline]
pub fn varint(most: usize, mut byte: impl FnMut(usize) -> Option<u8>) -> Option<(u64, usize)> {
    let mut value = 0;
    for at in 0..most {
        let byte = byte(at)?;
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((value, at + 1));
        }
    }
    None
}

/// Reads the fields of a message: an iterator over the number and the value of each field. The iterator ends at the
/// first invalid field.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    is_damaged: bool,
}

impl<'a> Reader<'a> {
    /// Creates a reader of these bytes.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, is_damaged: false }
    }

    /// Returns whether all fields that were read so far were valid.
    pub const fn is_whole(&self) -> bool {
        !self.is_damaged
    }

    /// Returns the value of the first field with the number `field`, or `None` if the message has no such
    /// field.
    #[inline(never)]
    pub fn first(bytes: &'a [u8], field: u32) -> Option<Value<'a>> {
        Self::new(bytes).find_map(|(number, value)| (number == field).then_some(value))
    }

    #[inline(never)]
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for (at, byte) in self.rest.iter().enumerate().take(VARINT_MAX) {
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte & 0x80 == 0 {
                self.rest = self.rest.get(at + 1..)?;
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    #[inline(never)]
    fn field(&mut self) -> Option<(u32, Value<'a>)> {
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).ok().filter(|number| *number > 0)?;
        let value = match (key & 7) as u8 {
            VARINT => Value::Number(self.varint()?),
            FIXED64 => Value::Fixed64(u64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            BYTES => {
                let len = usize::try_from(self.varint()?).ok()?;
                Value::Bytes(self.take(len)?)
            }
            FIXED32 => Value::Fixed32(u32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        Some((number, value))
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = (u32, Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() || self.is_damaged {
            return None;
        }
        let field = self.field();
        self.is_damaged = field.is_none();
        field
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut bytes = [0; 600];
        let long = [b'x'; 300];
        let mut writer = Writer::new(&mut bytes);
        writer.number(1, 0).number(2, u64::MAX).fixed64(3, 7).bytes(4, b"text").message(5, |inner| {
            inner.number(1, 300).message(2, |innermost| {
                innermost.bytes(9, &long);
            });
        });
        writer.number(1000, 5);
        let written = writer.finish().unwrap();
        let mut reader = Reader::new(written);
        let fields: Vec<_> = reader.by_ref().collect();
        assert!(reader.is_whole());
        let Value::Bytes(inner) = fields[4].1 else { panic!("{fields:?}") };
        assert_eq!(
            fields,
            [
                (1, Value::Number(0)),
                (2, Value::Number(u64::MAX)),
                (3, Value::Fixed64(7)),
                (4, Value::Bytes(b"text")),
                (5, Value::Bytes(inner)),
                (1000, Value::Number(5)),
            ]
        );
        assert_eq!(Reader::first(inner, 1), Some(Value::Number(300)));
        let innermost = Reader::first(inner, 2).unwrap().bytes();
        assert_eq!(Reader::first(innermost, 9).unwrap().bytes(), long);
    }

    #[test]
    fn what_does_not_fit_is_not_there() {
        let mut whole = [0; 64];
        let write = |bytes: &mut [u8]| {
            let mut writer = Writer::new(bytes);
            writer.number(1, 1 << 40).message(2, |inner| {
                inner.bytes(1, b"some text").fixed64(2, 1);
            });
            writer.finish().map(<[u8]>::len)
        };
        let len = write(&mut whole).unwrap();
        for room in 0..len {
            assert_eq!(write(&mut vec![0; room]), None, "{room}");
        }
        assert_eq!(write(&mut vec![0; len]), Some(len));
        // The length of this message needs a second byte, for which there is no room.
        let mut tight = [0; 131];
        let mut writer = Writer::new(&mut tight);
        writer.message(1, |inner| {
            inner.bytes(1, &[0; 127]);
        });
        assert_eq!(writer.finish(), None);
    }

    #[test]
    fn every_cut_of_a_message_ends_and_says_so() {
        let mut bytes = [0; 64];
        let mut writer = Writer::new(&mut bytes);
        writer.number(1, 300).bytes(2, b"abc").fixed64(3, 1);
        let whole = writer.finish().unwrap();
        let ends = [0, 3, 8, 17];
        for cut in 0..=whole.len() {
            let mut reader = Reader::new(&whole[..cut]);
            let read = reader.by_ref().count();
            assert_eq!(reader.is_whole(), ends.contains(&cut), "{cut}");
            assert_eq!(read, ends.iter().filter(|end| **end > 0 && **end <= cut).count());
        }
        // The wrong messages: a length larger than any memory, a field without a number, an endless varint, and a
        // group.
        for bytes in [&b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"[..], b"\x00\x01", &[0xff; 12], b"\x0b"]
        {
            let mut reader = Reader::new(bytes);
            assert_eq!((reader.next(), reader.is_whole()), (None, false));
        }
    }
}
