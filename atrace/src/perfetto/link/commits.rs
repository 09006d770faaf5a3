//! Commits: the chunks that threads have completed are named to the service.

use atrace_sys::perfetto::memory::Arena;

use super::connection::{COMMIT, Link, REQUEST_MAX};
use crate::perfetto::standing::Standing;

/// As many chunks are named in one frame: each with at most 15 bytes.
const MOVED_MAX: usize = 240;
const _: () = assert!(15 * MOVED_MAX + 64 < REQUEST_MAX);

impl Link {
    /// Names completed chunks to the service; tells whether there were any. Then the number of a flush, if it is one.
    #[inline(never)]
    pub(super) fn commit(&mut self, flush: Option<u64>) -> Result<bool, Standing> {
        let mut completed = self.arena.map(Arena::take_handed).filter(|completed| !completed.is_empty());
        let is_any = completed.is_some();
        while let Some(part) = completed.take() {
            self.invoke(COMMIT, false, |commit| {
                let mut rest = part.clone();
                rest.by_ref().take(MOVED_MAX).for_each(|place| place.write(commit));
                completed = Some(rest).filter(|rest| !rest.is_empty());
            })?;
        }
        if let Some(flush) = flush {
            self.notify(COMMIT, &[(3, flush)])?;
        }
        Ok(is_any)
    }
}
