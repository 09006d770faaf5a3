//! Which ends a thread owes: those of slices whose begins were written, while there was no room.
//!
//! While all begins were written there is nothing to remember. From the first lost one on, each open slice has a bit;
//! beyond 64 of them, begins are lost. All zeroes: nothing is owed.

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Debts {
    /// The open slices from the first lost one on, the youngest in the lowest bit: whether its begin was written.
    slices: u64,
    /// How many these are.
    open: u32,
    /// How many more were begun, and lost, on top of them.
    beyond: u32,
    /// Ends that are to be written.
    owed: u32,
}

impl Debts {
    /// Whether there is nothing to remember.
    #[inline(always)]
    pub(crate) fn is_none(&self) -> bool {
        self.owed | self.open == 0
    }

    /// Whether a slice could be remembered that begins now.
    pub(crate) fn may_begin(&self) -> bool {
        self.open < u64::BITS && self.beyond == 0
    }

    /// A slice began, or was lost.
    pub(crate) fn begun(&mut self, is_written: bool) {
        if !self.may_begin() {
            self.beyond += 1;
        } else if self.open > 0 || !is_written {
            self.slices = self.slices << 1 | u64::from(is_written);
            self.open += 1;
        }
    }

    /// A slice ends: whether its begin was written, so that its end is due.
    pub(crate) fn is_end_due(&mut self) -> bool {
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

    /// An end is due.
    pub(crate) fn owe(&mut self) {
        self.owed += 1;
    }

    /// An end was written.
    pub(crate) fn paid(&mut self) {
        self.owed -= 1;
    }

    /// Nothing is due any more; returns how many ends were.
    pub(crate) fn forgive(&mut self) -> u32 {
        std::mem::take(self).owed
    }

    /// How many ends are due.
    pub(crate) fn owed(&self) -> u32 {
        self.owed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a stack of all slices, with room that comes and goes.
    #[test]
    fn ends_are_those_of_the_begins_that_were_written() {
        let mut seed = 1_u64;
        let mut random = move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed >> 33
        };
        for _ in 0..if cfg!(miri) { 20 } else { 200 } {
            let (mut debts, mut stack, mut owed, mut has_room) = (Debts::default(), Vec::new(), 0, true);
            let bias = random() % 100;
            for _ in 0..500 {
                if random().is_multiple_of(5) {
                    has_room = !has_room;
                }
                if has_room {
                    while debts.owed() > 0 {
                        debts.paid();
                        owed -= 1;
                    }
                }
                if random() % 100 < bias || stack.is_empty() {
                    let is_written = debts.may_begin() && has_room;
                    debts.begun(is_written);
                    stack.push(is_written);
                } else {
                    let was_written = stack.pop().unwrap();
                    assert_eq!(debts.is_end_due(), was_written);
                    if was_written {
                        debts.owe();
                        owed += 1;
                    }
                }
                assert_eq!(debts.owed(), owed);
                assert!(!debts.is_none() || stack.iter().all(|is_written| *is_written) && owed == 0);
            }
        }
    }
}
