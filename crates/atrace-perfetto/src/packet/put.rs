//! Where the next byte of a packet goes, and what stands in more than one kind of them: varints, texts, callsites.

use std::ptr;

use atrace_sys::text::cut;

use crate::callsite::Site;
use crate::words::Words;

/// The longest name of a packet whose lengths have one byte.
pub(crate) const SHORT: usize = 96;
/// The longest texts of a callsite that are told.
pub(super) const SITE_NAME_MAX: usize = 512;
pub(super) const SITE_TEXT_MAX: usize = 256;

/// The argument that has an event's level, and its number.
const LEVEL: &str = "level";
pub(super) const LEVEL_NUMBER: u8 = 1;

/// The levels' name, from 1 on.
pub(super) fn level_name(level: u8) -> &'static str {
    const NAMES: Words = Words::new("ERROR WARN INFO DEBUG TRACE");
    NAMES.at(usize::from(level).wrapping_sub(1))
}

const FIELD_TIMESTAMP: u8 = 8 << 3;

/// Where the next byte goes.
#[derive(Clone, Copy)]
pub(super) struct Put(pub(super) *mut u8);

// Every function below writes within the room that its caller has made sure of; addresses need no alignment.
impl Put {
    #[inline(always)]
    pub(super) unsafe fn bytes<const N: usize>(&mut self, bytes: [u8; N]) {
        // SAFETY: the caller has room.
        unsafe {
            self.0.cast::<[u8; N]>().write_unaligned(bytes);
            self.0 = self.0.add(N);
        }
    }

    #[inline(always)]
    pub(super) unsafe fn varint(&mut self, mut value: u64) {
        while value > 0x7f {
            // SAFETY: the caller has room for ten bytes.
            unsafe { self.bytes([value as u8 | 0x80]) };
            value >>= 7;
        }
        // SAFETY: as above.
        unsafe { self.bytes([value as u8]) };
    }

    /// The time since the packet before: less than 16 µs as a rule.
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

    #[inline(always)]
    pub(super) unsafe fn text(&mut self, text: &[u8]) {
        // SAFETY: the caller has room; shared memory is no part of the text.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr(), self.0, text.len());
            self.0 = self.0.add(text.len());
        }
    }

    /// A text: a short one without a call.
    #[inline(always)]
    pub(super) unsafe fn any_text(&mut self, text: &[u8]) {
        // SAFETY: the caller has room.
        unsafe { if !cfg!(small) && text.len() <= SHORT { self.short_text(text) } else { self.text(text) } };
    }

    /// The same in a call, for what is written less often.
    #[inline(never)]
    pub(super) unsafe fn called_text(mut self, text: &[u8]) -> Self {
        // SAFETY: the caller has room.
        unsafe { self.any_text(text) };
        self
    }

    /// A text of at most [`SHORT`] bytes.
    #[inline(always)]
    pub(super) unsafe fn short_text(&mut self, text: &[u8]) {
        let (from, to, len) = (text.as_ptr(), self.0, text.len());
        // SAFETY: two copies that overlap and together are the text; the caller has room.
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

    /// A text as a field whose key has one byte.
    #[inline(never)]
    pub(super) unsafe fn field(&mut self, key: u8, text: &[u8]) {
        // SAFETY: the caller has room for three bytes more than the text has.
        unsafe {
            self.bytes([key]);
            let start = self.later::<false>();
            self.text(text);
            self.close::<false>(start);
        }
    }

    /// A text that is told once, as a field whose key has one byte: its number, which is encoded, and where it is from a file, the
    /// line.
    #[inline(never)]
    pub(super) unsafe fn entry(&mut self, key: u8, number: &[u8], text: &str, line: Option<u32>) {
        // SAFETY: the caller has room for the number and the text, and 13 bytes more.
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

    /// What an event has of its callsite, with its name or without.
    #[inline(always)]
    pub(super) unsafe fn site(&mut self, site: &Site<'_>, has_name: bool) {
        if !site.has_number() {
            // SAFETY: the caller has room.
            *self = unsafe { self.whole_site(*site, has_name) };
            return;
        }
        let [low, high] = pair(site.number);
        // SAFETY: the caller has room for 18 bytes.
        unsafe {
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

    /// The same without a number; returns where the next byte goes.
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn whole_site(mut self, site: Site<'_>, has_name: bool) -> Self {
        // SAFETY: the caller has room for the texts, cut as here, and 64 bytes more.
        unsafe {
            if has_name {
                self.bytes([0xba]);
                self.field(1, cut(site.name, SITE_NAME_MAX).as_bytes());
            }
            let Some(about) = site.about else { return self };
            self.bytes([0xb2]);
            self.field(1, cut(about.target(), SITE_TEXT_MAX).as_bytes());
            if let Some((file, line)) = about.place() {
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

    /// Keeps room for a length: of one byte, or of two.
    #[inline(always)]
    pub(super) fn later<const IS_SHORT: bool>(&mut self) -> *mut u8 {
        let place = self.0;
        self.0 = place.wrapping_add(if IS_SHORT { 1 } else { 2 });
        place
    }

    /// Writes the length of what was put behind `place`.
    #[inline(always)]
    pub(super) unsafe fn close<const IS_SHORT: bool>(self, place: *mut u8) {
        let len = self.0.addr() - place.addr();
        // SAFETY: the bytes that were kept.
        unsafe {
            if IS_SHORT {
                place.write((len - 1) as u8);
            } else {
                place.cast::<[u8; 2]>().write_unaligned(wide(len - 2).to_le_bytes());
            }
        }
    }
}

/// A call: the compiler would unroll the loop wherever it is inlined.
#[inline(never)]
unsafe fn copy_by_16(from: *const u8, to: *mut u8, len: usize) {
    let mut at = 0;
    // SAFETY: the caller's.
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
    // SAFETY: the caller's.
    unsafe { to.cast::<[u8; N]>().write_unaligned(from.cast::<[u8; N]>().read_unaligned()) };
}

/// The varint of a length below 2^14, in two bytes.
#[inline(always)]
pub(super) const fn wide(len: usize) -> u16 {
    len as u16 & 0x7f | 0x80 | (len >> 7 << 8) as u16
}

/// The varint of a number below 2^14, in two bytes.
#[inline(always)]
pub(super) const fn pair(number: u32) -> [u8; 2] {
    [number as u8 | 0x80, (number >> 7) as u8 & 0x7f]
}

/// What is known of a callsite that was told: category_iids, source_location_iid, and of debug_annotations `level`, all by
/// number.
#[inline(always)]
pub(super) fn known(number: u32, level: u8) -> ([u8; 8], [u8; 6]) {
    let number = u64::from(u16::from_le_bytes(pair(number)));
    let first = u64::from_le_bytes([0x18, 0, 0, 0x90, 2, 0, 0, 0x22]) | number << 8 | number << 40;
    (first.to_le_bytes(), [5, 0x08, LEVEL_NUMBER, 0x88, 1, level])
}
