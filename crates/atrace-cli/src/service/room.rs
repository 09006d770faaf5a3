//! Limits the memory of unfinished data: incomplete frames and answers, packets that continue, chunks that wait for
//! bytes, and known writers.
//!
//! There is one limit per connection and one for all. A connection has at most half of what the others leave, so that
//! there is room for the next one, too.

/// The most that one connection has.
const OF_ONE: usize = 16 << 20;
/// The most that all have.
const OF_ALL: usize = 64 << 20;

/// What a connection has of the room, and what all have.
#[derive(Debug)]
pub(super) struct Room<'a> {
    pub(super) own: &'a mut usize,
    pub(super) all: &'a mut usize,
}

impl Room<'_> {
    /// Takes so many bytes; false: there are not as many, and nothing was taken.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        let others = *self.all - *self.own;
        let is_there = *self.own + bytes <= OF_ONE.min((OF_ALL - others.min(OF_ALL)) / 2);
        if is_there {
            *self.own += bytes;
            *self.all += bytes;
        }
        is_there
    }

    /// Gives back what was taken.
    pub(super) fn give(&mut self, bytes: usize) {
        *self.own -= bytes;
        *self.all -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_all() {
        let (mut all, mut owns) = (0, [0; 8]);
        for own in &mut owns {
            let mut room = Room { own, all: &mut all };
            while room.take(1 << 10) {}
            assert!(*room.own <= OF_ONE && *room.own >= 64 << 10, "{room:?}");
        }
        assert!(all < OF_ALL && owns[..2] == [OF_ONE; 2], "{owns:?}");
        let freed = owns[0];
        Room { own: &mut owns[0], all: &mut all }.give(freed);
        assert_eq!((owns[0], all), (0, owns.iter().sum()));
    }
}
