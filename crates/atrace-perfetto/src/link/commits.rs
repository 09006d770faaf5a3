//! Commits: the chunks that threads have completed are named to the service.

use crate::memory::Arena;
use crate::proto::Writer;

use super::connection::{COMMIT, Link, REQUEST_MAX};
use super::requests::AROUND;
use crate::standing::Standing;

/// As many chunks are named in one frame, each with at most so many bytes.
const MOVED_MAX: usize = 240;
const MOVED_LEN: usize = 15;
const _: () = assert!(MOVED_MAX * MOVED_LEN + AROUND < REQUEST_MAX);

impl Link {
    /// Names completed chunks to the service; tells whether there were any. Then the number of a flush, if it is one.
    #[inline(never)]
    pub(super) fn commit(&mut self, flush: Option<u64>) -> Result<bool, Standing> {
        let mut is_any = false;
        // A flush is answered also where there is no memory yet.
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
