//! Unmatched ends: ends of slices that could not be written when the slice ended, because there was no room. The thread
//! has to write such an end later if the begin of the slice is in the trace.
//!
//! A thread whose chunk is full can't write while no other chunk is free. If a slice whose begin was written ends
//! during this time, its end must be written later. Otherwise all later slices of the thread would be nested in that
//! slice. If the begin of a slice was lost, the end must not be written, because it would close another slice.
//!
//! As long as no begin is lost, the number of open slices, which the writer stores, is enough to decide whether an end
//! must be written. From the first lost begin on, [`UnmatchedEnds`] has a bit for each slice that begins. The bit is
//! set if the slice's begin was written. While 64 such slices are open, all further begins are lost and only counted.
//! The initial state consists of zeroes.

/// The open slices since the first lost begin, and the number of ends that must be written later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct UnmatchedEnds {
    /// One bit for each open slice, beginning with the first slice whose begin was lost. The innermost slice has the
    /// lowest bit. A bit is 1 if the slice's begin was written.
    slices: u64,
    /// How many bits of `slices` are in use.
    open: u32,
    /// The number of open slices that have no bit, because all bits were in use when they began. Their begins are lost.
    beyond: u32,
    /// The number of ends that must be written.
    pending: u32,
}

impl UnmatchedEnds {
    /// Returns true if no bit is in use and no end is pending, so that the fast path may be used.
    #[inline(always)]
    pub(crate) fn is_clear(&self) -> bool {
        self.pending | self.open == 0
    }

    /// Returns whether a bit is free for a slice that begins now. If no bit is free, the begin of the slice must not be
    /// written.
    pub(crate) fn has_room(&self) -> bool {
        self.open < u64::BITS && self.beyond == 0
    }

    /// Records that a slice has begun, and whether its begin was written.
    pub(crate) fn begun(&mut self, is_written: bool) {
        if !self.has_room() {
            self.beyond += 1;
        } else if self.open > 0 || !is_written {
            self.slices = self.slices << 1 | u64::from(is_written);
            self.open += 1;
        }
    }

    /// Records that the innermost slice has ended. Returns whether its begin was written, in which case its end
    /// must be written, too.
    pub(crate) fn ended(&mut self) -> bool {
        if self.beyond > 0 {
            self.beyond -= 1;
            return false;
        }
        if self.open == 0 {
            return true;
        }
        let was_written = self.slices & 1 == 1;
        self.slices >>= 1;
        self.open -= 1;
        was_written
    }

    /// Adds one end to the number of ends that must be written later.
    pub(crate) fn add(&mut self) {
        self.pending += 1;
    }

    /// Removes one end, which was written, from the number of ends that must be written.
    pub(crate) fn remove(&mut self) {
        self.pending -= 1;
    }

    /// Drops all ends that have to be written, and returns their number.
    pub(crate) fn take_all(&mut self) -> u32 {
        std::mem::take(self).pending
    }

    /// Returns the number of ends that must be written.
    pub(crate) fn count(&self) -> u32 {
        self.pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the ends with a model, which is a stack of all slices. Chunks are sometimes free and sometimes not.
    #[test]
    fn ends_are_those_of_the_begins_that_were_written() {
        let mut seed = 1_u64;
        let mut random = move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed >> 33
        };
        for _ in 0..if cfg!(miri) { 20 } else { 200 } {
            let (mut unmatched, mut stack, mut owed, mut has_room) =
                (UnmatchedEnds::default(), Vec::new(), 0, true);
            let bias = random() % 100;
            for _ in 0..500 {
                if random().is_multiple_of(5) {
                    has_room = !has_room;
                }
                if has_room {
                    while unmatched.count() > 0 {
                        unmatched.remove();
                        owed -= 1;
                    }
                }
                if random() % 100 < bias || stack.is_empty() {
                    let is_written = unmatched.has_room() && has_room;
                    unmatched.begun(is_written);
                    stack.push(is_written);
                } else {
                    let was_written = stack.pop().unwrap();
                    assert_eq!(unmatched.ended(), was_written);
                    if was_written {
                        unmatched.add();
                        owed += 1;
                    }
                }
                assert_eq!(unmatched.count(), owed);
                assert!(!unmatched.is_clear() || stack.iter().all(|is_written| *is_written) && owed == 0);
            }
        }
    }
}
