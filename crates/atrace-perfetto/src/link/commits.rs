//! Commits: messages that tell the service which chunks are complete.

use crate::memory::Arena;
use crate::proto::Writer;

use super::connection::{COMMIT, Link, REQUEST_MAX};
use super::requests::AROUND;
use crate::standing::Standing;

/// How many chunks one message names, and how many bytes each of them takes at most.
const MOVED_MAX: usize = 240;
const MOVED_LEN: usize = 15;
const _: () = assert!(MOVED_MAX * MOVED_LEN + AROUND < REQUEST_MAX);

impl Link {
    /// Tells the service which chunks were completed; returns whether there were any. Then answers the flush with
    /// this number.
    #[inline(never)]
    pub(super) fn commit(&mut self, flush: Option<u64>) -> Result<bool, Standing> {
        let mut is_any = false;
        // A flush is answered even if there is no memory yet.
        if let Some(mut completed) = self.arena.map(Arena::take_handed) {
            is_any = !completed.is_empty();
            while !completed.is_empty() {
                let mut moved = [0; MOVED_MAX * MOVED_LEN];
                let mut writer = Writer::new(&mut moved);
                completed.by_ref().take(MOVED_MAX).for_each(|place| place.write(&mut writer));
                self.invoke(COMMIT, false, writer.finish())?;
            }
        }
        if let Some(flush) = flush {
            self.notify(COMMIT, &[(3, flush)])?;
        }
        Ok(is_any)
    }
}
