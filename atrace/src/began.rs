//! Where a slice began, in one word: in which process, and which way it went.
//!
//! ```text
//! by ATrace      the process' generation
//! by Perfetto    bit 63, the generation above the tags, the tags
//! ```
//!
//! A forked child holds copies of its parent's slices, which are not its own to end. It has another generation.

use std::num::NonZeroU64;

use atrace_sys::fork::{Generation, generation};

use crate::AtraceTag;
use crate::producer::Written;

/// Where a slice began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Began(NonZeroU64);

/// The way that a slice ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    ByAtrace,
    ByPerfetto { tags: u64 },
}

const TAGS: u64 = AtraceTag::ValidMask.bits();
/// No generation has this bit.
const BY_PERFETTO: u64 = 1 << 63;

/// By Perfetto: all but the tags.
#[inline(always)]
fn by_perfetto(generation: Generation) -> u64 {
    generation.number() << TAGS.trailing_ones() | BY_PERFETTO
}

impl Began {
    /// Now, in this process.
    #[inline(always)]
    pub(crate) fn now(written: Written, tag: AtraceTag) -> Option<Self> {
        let word = match written {
            Written::ByAtrace => generation().number(),
            Written::ByPerfetto => by_perfetto(generation()) | (tag.bits() & TAGS),
        };
        NonZeroU64::new(word).map(Self)
    }

    /// How it ends; `None` in another process than that it began in.
    #[inline(always)]
    pub(crate) fn ends(self) -> Option<Ends> {
        let (word, present) = (self.0.get(), generation());
        if word == present.number() {
            Some(Ends::ByAtrace)
        } else if word & !TAGS == by_perfetto(present) {
            Some(Ends::ByPerfetto { tags: word & TAGS })
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
        let marked = Began::now(Written::ByAtrace, tag).unwrap();
        assert_eq!(marked.ends(), Some(Ends::ByAtrace));
        let packed = Began::now(Written::ByPerfetto, tag | AtraceTag::NotReady).unwrap();
        assert_eq!(packed.ends(), Some(Ends::ByPerfetto { tags: tag.bits() }));
        // A child's generation is another.
        let other = 1 << TAGS.trailing_ones();
        assert_eq!(Began(packed.0.checked_add(other).unwrap()).ends(), None);
        assert_eq!(Began(marked.0.checked_add(1).unwrap()).ends(), None);
    }
}
