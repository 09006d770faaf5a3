//! Commits: the chunks that threads have completed are named to the service.

use atrace_sys::perfetto::wire::Moved;

use super::Link;
use super::requests::COMMIT;
use crate::perfetto::standing::Gone;

/// As many chunks are named in one frame.
const MOVED_MAX: usize = 4000;

impl Link {
    /// Names completed chunks to the service; tells whether there were any. With the number of a flush, always.
    pub(super) fn commit(&mut self, flush: Option<u64>) -> Result<bool, Gone> {
        let mut moved: Vec<Moved> = Vec::new();
        if let Some(arena) = self.arena {
            arena.take_handed(|place| moved.push(place));
        }
        let is_any = !moved.is_empty();
        let mut parts = moved.chunks(MOVED_MAX).peekable();
        while let Some(part) = parts.next() {
            let is_last = parts.peek().is_none();
            self.invoke(COMMIT, false, |commit| {
                for place in part {
                    place.write(commit);
                }
                if let Some(flush) = flush.filter(|_| is_last) {
                    commit.number(3, flush);
                }
            })?;
        }
        if let Some(flush) = flush.filter(|_| !is_any) {
            self.invoke(COMMIT, false, |commit| {
                commit.number(3, flush);
            })?;
        }
        Ok(is_any)
    }
}
