//! Reads the pages of a ring buffer, as `trace_pipe_raw` returns them.
//!
//! # Format
//!
//! A page begins with the time of its first event and the number of bytes that are in use (`events/header_page`). The
//! events follow. Each event has a head of 32 bits (`events/header_event`): a type of 5 bits, and the time since the
//! previous event in 27 bits. The types are:
//!
//! - type 1 to 28: data follows; its length is four bytes times the number of the type;
//! - type 0: the next 32 bits are the length of the data that follows, plus the 4 bytes of this length itself;
//! - type 29: no event; if the time in the head is not 0, the next 32 bits are the number of bytes to skip, including
//!   the 4 bytes of this number; if the time is 0, the page ends;
//! - type 30: the next 32 bits are the upper part of the time since the previous event;
//! - type 31: the time in the head is absolute, and the next 32 bits are its upper part.
//!
//! All numbers have the byte order and word size of the kernel. No number is trusted: the reading of a page ends where
//! the page is not in this format.
//!
//! Source: the kernel's `Documentation/trace/ring-buffer-map.rst` and `include/linux/ring_buffer.h`.

/// The bit in the number of bytes in use that is set if events before this page were lost.
const LOST: u64 = 1 << 31;
/// The bits that hold the number of bytes in use.
const LENGTH: u64 = (1 << 27) - 1;

/// A field of an event or a page, from a line such as `field:char comm[16]; offset:8; size:16; signed:0;`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) offset: usize,
    pub(super) size: usize,
    pub(super) is_signed: bool,
}

impl Field {
    /// Parses a line of an event's file `format`, or of `events/header_page`. Returns `None` if the line describes no
    /// field.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let mut parts = line.trim().strip_prefix("field:")?.split(';').map(str::trim);
        let declared = parts.next()?;
        let mut number = |name: &str| -> Option<usize> {
            parts.next()?.strip_prefix(name)?.strip_prefix(':')?.parse().ok()
        };
        let (offset, size) = (number("offset")?, number("size")?);
        let is_signed = number("signed").is_some_and(|signed| signed == 1);
        let start = declared.rfind([' ', '*']).map_or(0, |at| at + 1);
        let (kind, name) = declared.split_at(start);
        // The brackets of an array are a part of its type, and not of its name.
        let (name, array) = name.split_at(name.find('[').unwrap_or(name.len()));
        let kind = format!("{}{array}", kind.trim());
        Some(Self { kind, name: name.to_owned(), offset, size, is_signed })
    }

    /// Reads the field's number, which has 1, 2, 4 or 8 bytes, from the data of an event or page. Signed numbers are
    /// extended to 64 bits.
    pub(super) fn number(&self, data: &[u8]) -> Option<u64> {
        let bytes = data.get(self.offset..self.offset.checked_add(self.size)?)?;
        Some(match *bytes {
            [byte] if self.is_signed => i64::from(byte.cast_signed()).cast_unsigned(),
            [byte] => byte.into(),
            [a, b] if self.is_signed => i64::from(i16::from_ne_bytes([a, b])).cast_unsigned(),
            [a, b] => u16::from_ne_bytes([a, b]).into(),
            [a, b, c, d] if self.is_signed => i64::from(i32::from_ne_bytes([a, b, c, d])).cast_unsigned(),
            [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]).into(),
            _ => u64::from_ne_bytes(bytes.try_into().ok()?),
        })
    }
}

/// The positions of the parts of a page.
#[derive(Debug)]
pub(super) struct Layout {
    time: Field,
    used: Field,
    data: Field,
}

impl Layout {
    /// Parses the text of `events/header_page`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| text.lines().filter_map(Field::parse).find(|field| field.name == name);
        Some(Self { time: field("timestamp")?, used: field("commit")?, data: field("data")? })
    }

    /// Returns the size of a page in bytes.
    pub(super) fn size(&self) -> usize {
        self.data.offset + self.data.size
    }

    /// Returns the events of a page, or `None` if the page has no header.
    pub(super) fn page<'a>(&self, page: &'a [u8]) -> Option<Page<'a>> {
        let (time, used) = (self.time.number(page)?, self.used.number(page)?);
        let data = page.get(self.data.offset..)?;
        let rest = data.get(..usize::try_from(used & LENGTH).ok()?).unwrap_or(data);
        Some(Page { is_after_loss: used & LOST != 0, rest, time })
    }
}

/// The events of a page: an iterator over the time and the data of each event.
pub(super) struct Page<'a> {
    pub(super) is_after_loss: bool,
    rest: &'a [u8],
    time: u64,
}

impl<'a> Page<'a> {
    fn word(&mut self) -> Option<u32> {
        let (word, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(u32::from_ne_bytes(*word))
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }
}

impl<'a> Iterator for Page<'a> {
    type Item = (u64, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let head = self.word()?;
            // The head is a C bit field. Its first member, the type, is in the lowest bits, or on big-endian machines
            // in the highest bits.
            let (kind, since) = if cfg!(target_endian = "big") {
                (head >> 27, head & ((1 << 27) - 1))
            } else {
                (head & 31, head >> 5)
            };
            let since = u64::from(since);
            if kind == 31 {
                self.time = since | u64::from(self.word()?) << 27;
                continue;
            }
            self.time = self.time.wrapping_add(since);
            match kind {
                29 if since == 0 => return None,
                29 => {
                    let len = self.word()?;
                    self.take((len as usize).checked_sub(4)?)?;
                }
                30 => self.time = self.time.wrapping_add(u64::from(self.word()?) << 27),
                0 => {
                    let len = (self.word()? as usize).checked_sub(4)?;
                    return Some((self.time, self.take(len)?));
                }
                words => return Some((self.time, self.take(words as usize * 4)?)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
        \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
        \tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
        \tfield: char data;\toffset:16;\tsize:4080;\tsigned:0;\n";

    fn head(kind: u32, since: u32) -> [u8; 4] {
        if cfg!(target_endian = "big") { kind << 27 | since } else { since << 5 | kind }.to_ne_bytes()
    }

    fn page(used: u64, words: &[[u8; 4]]) -> Vec<u8> {
        [&1000_u64.to_ne_bytes()[..], &used.to_ne_bytes(), words.as_flattened()].concat()
    }

    #[test]
    fn fields_are_parsed() {
        let field = |line| Field::parse(line).unwrap();
        let comm = field("\tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;");
        assert_eq!((&*comm.kind, &*comm.name, comm.offset, comm.size), ("char[16]", "prev_comm", 8, 16));
        let text = field("\tfield:__data_loc char[] cmd;\toffset:60;\tsize:4;\tsigned:0;");
        assert_eq!((&*text.kind, &*text.name), ("__data_loc char[]", "cmd"));
        let pointer = field("\tfield:const void *x;\toffset:0;\tsize:8;\tsigned:0;");
        assert_eq!((&*pointer.kind, &*pointer.name), ("const void *", "x"));
        // A negative number is extended to 64 bits. If the data is too short for the field, there is no number.
        let number = field("field:int ret;\toffset:4;\tsize:4;\tsigned:1;");
        assert_eq!(number.number(&[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]), Some(u64::MAX));
        assert_eq!(number.number(&[0; 7]), None);
        assert_eq!(Field::parse("print fmt: \"x\""), None);
    }

    #[test]
    fn every_kind_of_event_is_read() {
        let layout = Layout::parse(HEAD).unwrap();
        assert_eq!(layout.size(), 4096);
        let words = [
            head(1, 5),
            *b"one ",
            head(30, 1),
            1_u32.to_ne_bytes(),
            head(0, 0),
            12_u32.to_ne_bytes(),
            *b"long",
            *b" one",
            head(29, 2),
            8_u32.to_ne_bytes(),
            *b"gone",
            head(31, 7),
            2_u32.to_ne_bytes(),
            head(1, 0),
            *b"last",
            head(29, 0),
            *b"rest",
        ];
        let page = page(LOST | (words.len() as u64 * 4), &words);
        let page = layout.page(&page).unwrap();
        assert!(page.is_after_loss);
        let events: Vec<_> = page.collect();
        let expected: [(u64, &[u8]); 3] =
            [(1005, b"one "), (1006 + (1 << 27), b"long one"), (7 + (2 << 27), b"last")];
        assert_eq!(events, expected);
    }

    #[test]
    fn no_page_ends_the_reader() {
        let layout = Layout::parse(HEAD).unwrap();
        assert!(layout.page(&[0; 15]).is_none());
        for used in [0, 3, 4, 1 << 20, u64::MAX] {
            for kind in 0..32 {
                for word in [0_u32, 3, 4, 5, 1 << 20, u32::MAX] {
                    let page = page(used, &[head(kind, 1), word.to_ne_bytes(), [0xff; 4]]);
                    assert!(layout.page(&page).unwrap().count() <= 3);
                }
            }
        }
    }
}
