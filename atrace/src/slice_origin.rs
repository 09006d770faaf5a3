//! The origin of a slice, in one word: the process that began it, and the backend that wrote the begin.
//!
//! ```text
//! by ATrace      the generation of the process
//! by Perfetto    bit 63 set, the generation above the tags, the tags
//! ```
//!
//! An end must be written by the backend that wrote the begin, whatever is enabled by then. A forked child has copies of its
//! parent's slices and must not end them: its generation ([`atrace_sys::fork`]) is another one.

use std::num::NonZeroU64;

use atrace_sys::fork::{Generation, generation};

use crate::AtraceTag;
use crate::producer::Written;

/// Where the begin of a slice was written: the process, the backend and, for Perfetto's, the tags. The end goes the same
/// way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SliceOrigin(NonZeroU64);

/// How a slice must be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SliceEnd {
    ByAtrace,
    ByPerfetto { tags: u64 },
}

const TAGS: u64 = AtraceTag::ValidMask.bits();
/// Marks a slice of Perfetto's. No generation has this bit.
const BY_PERFETTO: u64 = 1 << 63;

/// Returns the word of a slice of Perfetto's, without its tags.
#[inline(always)]
fn by_perfetto(generation: Generation) -> u64 {
    generation.number() << TAGS.trailing_ones() | BY_PERFETTO
}

impl SliceOrigin {
    /// Returns the origin of a slice that this process begins now, or `None` if the word would be 0.
    #[inline(always)]
    pub(crate) fn now(written: Written, tag: AtraceTag) -> Option<Self> {
        let word = match written {
            Written::ByAtrace => generation().number(),
            Written::ByPerfetto => by_perfetto(generation()) | (tag.bits() & TAGS),
        };
        NonZeroU64::new(word).map(Self)
    }

    /// Returns how the slice must be ended, or `None` if another process began it.
    #[inline(always)]
    pub(crate) fn end(self) -> Option<SliceEnd> {
        let (word, present) = (self.0.get(), generation());
        if word == present.number() {
            Some(SliceEnd::ByAtrace)
        } else if word & !TAGS == by_perfetto(present) {
            Some(SliceEnd::ByPerfetto { tags: word & TAGS })
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_ends_the_way_that_it_began_in_its_process() {
        let tag = AtraceTag::App | AtraceTag::View;
        let marked = SliceOrigin::now(Written::ByAtrace, tag).unwrap();
        assert_eq!(marked.end(), Some(SliceEnd::ByAtrace));
        let packed = SliceOrigin::now(Written::ByPerfetto, tag | AtraceTag::NotReady).unwrap();
        assert_eq!(packed.end(), Some(SliceEnd::ByPerfetto { tags: tag.bits() }));
        // A child has another generation.
        let other = 1 << TAGS.trailing_ones();
        assert_eq!(SliceOrigin(packed.0.checked_add(other).unwrap()).end(), None);
        assert_eq!(SliceOrigin(marked.0.checked_add(1).unwrap()).end(), None);
    }
}
