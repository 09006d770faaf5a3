//! Limits the memory of unfinished data: incomplete frames, messages that a producer has not read, packets that
//! continue in another chunk, chunks that wait for patches, and known writers.
//!
//! There is one limit per connection and one for all connections. A connection gets at most half of the memory that
//! the others leave. So there is always memory left for the next connection.

/// The limit per connection in bytes.
const OF_ONE: usize = 16 << 20;
/// The limit for all connections in bytes.
const OF_ALL: usize = 64 << 20;

/// The memory in use: of one connection, and of all.
#[derive(Debug)]
pub(super) struct Room<'a> {
    pub(super) own: &'a mut usize,
    pub(super) all: &'a mut usize,
}

impl Room<'_> {
    /// Reserves memory. Returns false, and reserves nothing, if a limit would be exceeded.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        let others = *self.all - *self.own;
        let is_there = *self.own + bytes <= OF_ONE.min((OF_ALL - others.min(OF_ALL)) / 2);
        if is_there {
            *self.own += bytes;
            *self.all += bytes;
        }
        is_there
    }

    /// Releases reserved memory.
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
