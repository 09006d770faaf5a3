//! The layout of the file of a property store.
//!
//! Numbers are in the byte order of the machine. A header of 64 bytes is followed by 256 entries of 384 bytes:
//!
//! | header | | entry | |
//! |---|---|---|---|
//! | 0 | magic, `ATRPROP` and the version, 1 | 0 | u32 serial, a futex word |
//! | 8 | u32 capacity, 256 | 4 | u32 length of the key |
//! | 12 | u32 count of published entries | 8 | key, closed by a NUL, 184 bytes |
//! | 16 | u32 area serial, a futex word | 192 | value 0, closed by a NUL, 96 bytes |
//! | 20 | zeroes | 288 | value 1, closed by a NUL, 96 bytes |

use super::super::text::KEY_MAX;

/// The first bytes of a store: a magic text, and the version of the layout.
pub(super) const MAGIC: [u8; 8] = *b"ATRPROP\x01";

/// The number of properties that a store can hold. The number is smaller under Miri, which checks each byte of
/// a store at each call.
pub(super) const CAPACITY: usize = if cfg!(miri) { 4 } else { 256 };

/// The number of bytes in an entry for the key and a NUL.
pub(super) const KEY_ROOM: usize = KEY_MAX + 1;

/// The number of bytes in an entry for each of its two values and a NUL.
pub(super) const VALUE_ROOM: usize = 96;
