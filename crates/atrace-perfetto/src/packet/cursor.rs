//! The cursor with which packets are written, and the parts that several kinds of packets share: varints,
//! texts, callsites.
//!
//! A cursor is a bare address in a chunk. It does not know where the chunk ends, because a check of the room before
//! each field would take more instructions than writing the field. Instead, the encoder computes an upper bound of the
//! packet's size first (`Event::room` in `packet.rs`), and only begins the packet if the chunk has that much room. This
//! has three consequences for the functions below:
//!
//! - Each function that writes is `unsafe`. Its caller must have made sure of room for the longest field that the
//!   function may write, such as ten bytes for a varint. The caller's `SAFETY` comment names the bound.
//! - A store may be wider than the field, as long as it stays within this room: the next field overwrites the excess
//!   bytes.
//! - The memory is shared with the service, which may write to it at any time. So a cursor only stores bytes, and never
//!   reads them back.
//!
//! Functions on the common path are inlined, so that the compiler joins their constant bytes into few stores. Functions
//! for rare fields are not inlined. Most of them take the cursor by value and return it, so that it stays in a register.

use std::ptr;

use atrace_sys::text::cut;

use crate::callsite::Site;
use crate::event::SHORT;
use crate::names::Names;

/// The maximum length of a callsite's name in a packet, in bytes. A longer name is cut.
pub(super) const SITE_NAME_MAX: usize = 512;
/// The maximum length of a callsite's target, and of its source file, in a packet, in bytes. Longer texts are cut.
pub(super) const SITE_TEXT_MAX: usize = 256;

/// The name of the argument that holds an event's level.
const LEVEL: &str = "level";
/// The number by which the name `level` is interned.
pub(super) const LEVEL_NUMBER: u8 = 1;

/// Returns the name of a level, from 1 (`ERROR`) to 5 (`TRACE`), or an empty text for other numbers.
pub(super) fn level_name(level: u8) -> &'static str {
    const NAMES: Names = Names("ERROR WARN INFO DEBUG TRACE", b' ');
    NAMES.at(usize::from(level).wrapping_sub(1))
}

const FIELD_TIMESTAMP: u8 = 8 << 3;
/// The number of `CLOCK_BOOTTIME` among Perfetto's clocks (`BuiltinClock`).
pub(super) const BOOTTIME: u8 = 6;

/// A cursor: the address of the next byte of a packet.
#[derive(Clone, Copy)]
pub(super) struct Cursor(pub(super) *mut u8);

// Every function below writes only where its caller has made sure of room. The `SAFETY` comment of the function states
// how much. The stores need no alignment.
impl Cursor {
    #[inline(always)]
    pub(super) unsafe fn bytes<const N: usize>(&mut self, bytes: [u8; N]) {
        // SAFETY: the caller has room for `N` bytes.
        unsafe {
            self.0.cast::<[u8; N]>().write_unaligned(bytes);
            self.0 = self.0.add(N);
        }
    }

    #[inline(always)]
    pub(super) unsafe fn varint(&mut self, mut value: u64) {
        // SAFETY: the caller has room for ten bytes, the longest varint.
        unsafe {
            while value > 0x7f {
                self.bytes([value as u8 | 0x80]);
                value >>= 7;
            }
            self.bytes([value as u8]);
        }
    }

    /// Writes the time since the previous packet. The common case, less than 16 µs, takes a single store.
    #[inline(always)]
    pub(super) unsafe fn since(&mut self, ns: u64) {
        // SAFETY: the caller has room for eleven bytes.
        unsafe {
            if ns < 1 << 14 {
                let word =
                    u32::from(FIELD_TIMESTAMP) | (ns as u32 & 0x7f | 0x80) << 8 | (ns as u32 >> 7) << 16;
                self.0.cast::<u32>().write_unaligned(word.to_le());
                self.0 = self.0.add(3);
            } else {
                self.bytes([FIELD_TIMESTAMP]);
                self.varint(ns);
            }
        }
    }

    /// Writes two fields: the time `ns`, and the number of its clock, `CLOCK_BOOTTIME`. Returns the cursor behind the
    /// fields.
    #[inline(never)]
    pub(super) unsafe fn own_time(mut self, ns: u64) -> Self {
        // SAFETY: the caller has room for fourteen bytes.
        unsafe {
            self.bytes([FIELD_TIMESTAMP]);
            self.varint(ns);
            self.bytes([0xd0, 3, BOOTTIME]);
        }
        self
    }

    #[inline(always)]
    pub(super) unsafe fn text(&mut self, text: &[u8]) {
        // SAFETY: the caller has room for the text. Shared memory is never part of the text, so the ranges don't
        // overlap.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr(), self.0, text.len());
            self.0 = self.0.add(text.len());
        }
    }

    /// Writes a text. Except in builds for size, a short text is written without a call of `memcpy`.
    #[inline(always)]
    pub(super) unsafe fn any_text(&mut self, text: &[u8]) {
        // SAFETY: the caller has room for the text.
        unsafe { if !cfg!(small) && text.len() <= SHORT { self.short_text(text) } else { self.text(text) } };
    }

    /// Does the same as [`any_text`](Self::any_text). This function is not inlined, because it is for packets that are
    /// rarely written.
    #[inline(never)]
    pub(super) unsafe fn called_text(mut self, text: &[u8]) -> Self {
        // SAFETY: the caller has room for the text.
        unsafe { self.any_text(text) };
        self
    }

    /// Writes a text of at most [`SHORT`] bytes.
    #[inline(always)]
    pub(super) unsafe fn short_text(&mut self, text: &[u8]) {
        let (from, to, len) = (text.as_ptr(), self.0, text.len());
        // SAFETY: each case copies only bytes of the text, in parts that may overlap and together are the whole text.
        // The caller has room for the text.
        unsafe {
            match len {
                8..16 => {
                    copy::<8>(from, to);
                    copy::<8>(from.add(len - 8), to.add(len - 8));
                }
                16..=32 => {
                    copy::<16>(from, to);
                    copy::<16>(from.add(len - 16), to.add(len - 16));
                }
                33.. => copy_by_16(from, to, len),
                4..8 => {
                    copy::<4>(from, to);
                    copy::<4>(from.add(len - 4), to.add(len - 4));
                }
                1..4 => {
                    to.write(*from);
                    to.add(len / 2).write(*from.add(len / 2));
                    to.add(len - 1).write(*from.add(len - 1));
                }
                0 => {}
            }
            self.0 = to.add(len);
        }
    }

    /// Writes a text as a field whose key has one byte.
    #[inline(never)]
    pub(super) unsafe fn field(&mut self, key: u8, text: &[u8]) {
        // SAFETY: the caller has room for the text and three bytes more: the key and a length of two bytes.
        unsafe {
            self.bytes([key]);
            let start = self.later::<false>();
            self.text(text);
            self.close::<false>(start);
        }
    }

    /// Writes an entry of interned data, as a field whose key has one byte. The entry has an encoded number and a
    /// text; the entry of a source location also has the line.
    #[inline(never)]
    pub(super) unsafe fn entry(&mut self, key: u8, number: &[u8], text: &str, line: Option<u32>) {
        // SAFETY: the caller has room for the number, the text, and 13 bytes more.
        unsafe {
            self.bytes([key]);
            let entry = self.later::<false>();
            self.bytes([0x08]);
            self.text(number);
            self.field(0x12, text.as_bytes());
            if let Some(line) = line {
                self.bytes([0x20]);
                self.varint(line.into());
            }
            self.close::<false>(entry);
        }
    }

    /// Writes the numbers by which an event refers to its callsite's interned metadata and, if `has_name` is true, to
    /// the callsite's name.
    #[inline(always)]
    pub(super) unsafe fn site(&mut self, site: &Site<'_>, has_name: bool) {
        let [low, high] = pair(site.number);
        // SAFETY: if the callsite has no number, the caller has room for all of its texts. Otherwise the caller has
        // room for 17 bytes: 3 for the name, and 8 and 6 for the metadata.
        unsafe {
            if !site.has_number() {
                *self = self.whole_site(*site, has_name);
                return;
            }
            if has_name {
                self.bytes([0x50, low, high]);
            }
            if site.about.is_some() {
                let (number, level) = known(site.number, site.level);
                self.bytes(number);
                self.bytes(level);
            }
        }
    }

    /// Does the same as [`site`](Self::site) for a callsite without a number, whose texts are written in full. Returns
    /// the cursor behind the texts.
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn whole_site(mut self, site: Site<'_>, has_name: bool) -> Self {
        // SAFETY: the caller has room for the texts, cut to the same lengths as here, and 64 bytes more.
        unsafe {
            if has_name {
                self.bytes([0xba]);
                self.field(1, cut(site.name, SITE_NAME_MAX).as_bytes());
            }
            let Some(about) = site.about else { return self };
            self.bytes([0xb2]);
            self.field(1, cut(about.target(), SITE_TEXT_MAX).as_bytes());
            if let Some((file, line)) = about.location() {
                self.bytes([0x8a, 2]);
                let place = self.later::<false>();
                self.field(0x12, cut(file, SITE_TEXT_MAX).as_bytes());
                self.bytes([0x20]);
                self.varint(line.into());
                self.close::<false>(place);
            }
            self.bytes([0x22]);
            let level = self.later::<false>();
            self.field(0x52, LEVEL.as_bytes());
            self.field(0x32, level_name(site.level).as_bytes());
            self.close::<false>(level);
        }
        self
    }

    /// Skips one or two bytes, for a length that is written later. Returns the address of the skipped bytes.
    #[inline(always)]
    pub(super) fn later<const IS_SHORT: bool>(&mut self) -> *mut u8 {
        let place = self.0;
        self.0 = place.wrapping_add(if IS_SHORT { 1 } else { 2 });
        place
    }

    /// Writes a length at `place`, the address that [`later`](Self::later) returned. The length is the number of bytes
    /// between the length itself and the cursor.
    #[inline(always)]
    pub(super) unsafe fn close<const IS_SHORT: bool>(self, place: *mut u8) {
        let len = self.0.addr() - place.addr();
        // SAFETY: `later` has skipped these bytes.
        unsafe {
            if IS_SHORT {
                place.write((len - 1) as u8);
            } else {
                place.cast::<[u8; 2]>().write_unaligned(wide(len - 2).to_le_bytes());
            }
        }
    }
}

/// Copies a text 16 bytes at a time. This function is not inlined, because the compiler would unroll the loop
/// in every caller.
#[inline(never)]
unsafe fn copy_by_16(from: *const u8, to: *mut u8, len: usize) {
    let mut at = 0;
    // SAFETY: the caller passes a text of `len` bytes, at least 16, and room for it.
    unsafe {
        while at + 16 < len {
            copy::<16>(from.add(at), to.add(at));
            at += 16;
        }
        copy::<16>(from.add(len - 16), to.add(len - 16));
    }
}

#[inline(always)]
unsafe fn copy<const N: usize>(from: *const u8, to: *mut u8) {
    // SAFETY: the caller passes `N` readable and `N` writable bytes.
    unsafe { to.cast::<[u8; N]>().write_unaligned(from.cast::<[u8; N]>().read_unaligned()) };
}

/// Returns a length below 2^14 as a varint of two bytes.
#[inline(always)]
pub(super) const fn wide(len: usize) -> u16 {
    len as u16 & 0x7f | 0x80 | (len >> 7 << 8) as u16
}

/// Returns a number below 2^14 as a varint of two bytes.
#[inline(always)]
pub(super) const fn pair(number: u32) -> [u8; 2] {
    [number as u8 | 0x80, (number >> 7) as u8 & 0x7f]
}

/// Returns the fields by which an event refers to an interned callsite, in two parts. The first part has
/// `category_iids`, `source_location_iid` and the key of the debug annotation `level`; the second part has the rest of
/// that annotation.
#[inline(always)]
pub(super) fn known(number: u32, level: u8) -> ([u8; 8], [u8; 6]) {
    let number = u64::from(u16::from_le_bytes(pair(number)));
    let first = u64::from_le_bytes([0x18, 0, 0, 0x90, 2, 0, 0, 0x22]) | number << 8 | number << 40;
    (first.to_le_bytes(), [5, 0x08, LEVEL_NUMBER, 0x88, 1, level])
}
