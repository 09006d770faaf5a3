//! Writing a message to a marker, and to nothing else.
//!
//! Whether the number still is our file can't be asked at each event: it would be a second system call. It is
//! asked (`fstat`)
//!
//! - before the first event of a thread and every 256th after it;
//! - by who calls [`Marker::check`], as is done when tracing is switched;
//! - when a message was not taken whole: a pipe without a reader, a full or unconnected socket, a closed number.
//!
//! A number that is another's is never written to again; the marker is opened at another one, and the message
//! written there. Where it can't be opened, messages are dropped, and each tries again. A regular file must also
//! not grow past a size limit (`RLIMIT_FSIZE`), which would signal: while there is one, messages are dropped.

use std::sync::atomic::Ordering;

use super::open::{Found, close, inherit_checked, look, open_checked};
#[cfg(all(feature = "guard-returns", target_arch = "x86_64", target_pointer_width = "64", not(miri)))]
use super::returns;
use super::{Marker, Source, TOLD, number_of};
use crate::process::Undisturbed;
use crate::thread;

impl Marker {
    /// Writes one message as one event, and tells whether the kernel took it whole.
    ///
    /// Never touches errno; blocks or signals only where the host put a pipe or socket of its own at our number
    /// since that was looked at. A failed write drops this message only; when the descriptor turns out to have
    /// been closed by the host, the marker is opened again and the message written.
    #[cfg_attr(debug_assertions, inline(never))]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn write(&self, message: &[u8]) -> bool {
        let mut fd = self.fd.load(Ordering::Relaxed);
        if is_due() {
            fd = self.look_at(fd);
        }
        let written = write_once(fd, message);
        if self.guards_returns {
            returns::guard();
        }
        written == message.len() as isize || self.write_again(fd, message, written)
    }

    /// Looks whether the descriptor still is the file that was opened, and opens it again if it is not.
    pub fn check(&self) {
        self.look_at(self.fd.load(Ordering::Relaxed));
    }

    /// The descriptor to go on with.
    #[cold]
    #[inline(never)]
    fn look_at(&self, fd: i32) -> i32 {
        let _undisturbed = Undisturbed::new();
        self.find(fd).unwrap_or(!number_of(fd))
    }

    #[cold]
    #[inline(never)]
    fn write_again(&self, fd: i32, message: &[u8], written: isize) -> bool {
        let _undisturbed = Undisturbed::new();
        let write = |fd| write_once(fd, message);
        let Err(code) = persist(message.len(), fd, written, |fd| self.find(fd), write) else { return true };
        self.last_error.store(code, Ordering::Relaxed);
        let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
        // The first, and ever fewer.
        if dropped.is_power_of_two() {
            TOLD.get()();
        }
        false
    }

    /// The number that is our file's, looked at now unless it is not `seen` any more; none where there is none to be
    /// had.
    fn find(&self, seen: i32) -> Option<i32> {
        if thread::has_left_descriptors() {
            return None; // What this thread sees and opens is nothing to the others.
        }
        let present = self.fd.load(Ordering::Relaxed);
        if present != seen && present >= 0 {
            return Some(present); // Another thread has done it.
        }
        let number = number_of(present);
        let new = match look(number, self.kind, self.identity) {
            Found::Ours => Some(number),
            Found::Limited => None,
            Found::Another => self.reopen(number),
        };
        match self.fd.compare_exchange(present, new.unwrap_or(!number), Ordering::Relaxed, Ordering::Relaxed)
        {
            Ok(_) => new,
            Err(faster) => {
                if let Some(new) = new.filter(|new| *new != number) {
                    close(new);
                }
                (faster >= 0).then_some(faster)
            }
        }
    }

    /// Opens the same file once more, at another number: a thread that still knows the stale one would take the
    /// new one for it.
    fn reopen(&self, stale: i32) -> Option<i32> {
        let opened = match &self.source {
            Source::Path(path) => open_checked(path, Some(stale)),
            Source::Inherited(fd) => inherit_checked(*fd, self.identity, Some(stale)),
        };
        let opened = opened.ok()?;
        if opened.kind == self.kind && opened.identity == self.identity {
            return Some(opened.fd);
        }
        close(opened.fd); // Another file stands there now: not what the user named.
        None
    }
}

/// After a message was not taken whole: has `find` look at the descriptor, and writes again to one that was not
/// tried, or was interrupted. Else returns the errno.
fn persist(
    length: usize,
    mut fd: i32,
    mut written: isize,
    mut find: impl FnMut(i32) -> Option<i32>,
    write: impl Fn(i32) -> isize,
) -> Result<(), i32> {
    let (mut code, mut was_closed) = (0, false);
    // Interrupted, closed by the host, closed again while we reopened: more than a few times is no accident.
    for _ in 0..4 {
        if written == length as isize {
            return Ok(());
        }
        code = if written < 0 { -written as i32 } else { libc::ENOSPC };
        match find(fd) {
            Some(present) if present != fd => fd = present,
            // The file that was opened, and so its own answer. EBADF is what tracefs says while `tracing_on` is 0; but
            // another thread may have opened it at this number since.
            Some(_) if code == libc::EINTR => {}
            Some(_) if code == libc::EBADF && !was_closed => was_closed = true,
            _ => break,
        }
        written = write(fd);
    }
    if written == length as isize { Ok(()) } else { Err(code) }
}

/// Tells whether it is time to look, for the calling thread: at its first message, and each 256th from then on.
#[cfg(not(target_os = "android"))]
#[inline(always)]
fn is_due() -> bool {
    use std::cell::Cell;
    thread_local! {
        static LEFT: Cell<u8> = const { Cell::new(1) };
    }
    LEFT.with(|left| {
        left.set(left.get().wrapping_sub(1));
        left.get() == 0
    })
}

/// The same for the calling thread's stack: a thread-local would call and allocate, as Android has none of its
/// own before 10. Stacks are at least 1 MiB apart there; those that share a count look more often.
#[cfg(target_os = "android")]
#[inline(always)]
fn is_due() -> bool {
    use std::sync::atomic::AtomicU8;
    #[repr(align(64))]
    struct Left(AtomicU8);
    static LEFT: [Left; 16] = [const { Left(AtomicU8::new(1)) }; 16];
    let here = 0_u8;
    let stack = (&raw const here).addr() >> 20;
    LEFT[stack % LEFT.len()].0.fetch_sub(1, Ordering::Relaxed) == 1
}

/// Whether the first return after a system call is worth a guard.
pub(super) fn returns_are_costly() -> bool {
    returns::are_costly()
}

/// On other processors, or not asked for: a return costs what it costs.
#[cfg(not(all(feature = "guard-returns", target_arch = "x86_64", target_pointer_width = "64", not(miri))))]
mod returns {
    pub(super) const fn are_costly() -> bool {
        false
    }
    pub(super) const fn guard() {}
}

/// One `write(2)`: the number of bytes taken, or the negated errno. Leaves errno alone.
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", not(miri)))]
#[inline(always)]
fn write_once(fd: i32, message: &[u8]) -> isize {
    let result: isize;
    // SAFETY: the kernel reads `message.len()` readable bytes; the call changes no memory of ours, and no
    // register but rax, rcx and r11.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_write => result,
            in("rdi") fd, // The kernel takes the low half.
            in("rsi") message.as_ptr(),
            in("rdx") message.len(),
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack, readonly),
        );
    }
    result
}

/// One `write(2)`: the number of bytes taken, or the negated errno. Leaves errno alone.
#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline(always)]
fn write_once(fd: i32, message: &[u8]) -> isize {
    let result: isize;
    // SAFETY: the kernel reads `message.len()` readable bytes; the call changes no memory of ours, and no
    // register but x0.
    unsafe {
        std::arch::asm!(
            "svc #0",
            in("x8") libc::SYS_write,
            inlateout("x0") fd as isize => result,
            in("x1") message.as_ptr(),
            in("x2") message.len(),
            options(nostack, readonly, preserves_flags),
        );
    }
    result
}

/// One `write(2)`: the number of bytes taken, or the negated errno. Leaves errno alone.
#[cfg(any(
    miri,
    not(any(all(target_arch = "x86_64", target_pointer_width = "64"), target_arch = "aarch64"))
))]
#[inline(always)]
fn write_once(fd: i32, message: &[u8]) -> isize {
    use crate::system::{ErrnoGuard, file};
    let _errno = ErrnoGuard::new();
    let failed = |error: std::io::Error| -(error.raw_os_error().unwrap_or(libc::EIO) as isize);
    file::write(fd, message).map_or_else(failed, |taken| taken as isize)
}

#[cfg(test)]
mod tests {
    use super::persist;
    use std::cell::RefCell;

    /// Plays a descriptor that answers with `answers` in turn, and whose number is found to be `found` in turn;
    /// returns what came of it, and the numbers written to.
    fn play(first: isize, found: &[Option<i32>], answers: &[isize]) -> (Result<(), i32>, Vec<i32>) {
        let (mut found, answers) = (found.iter(), RefCell::new(answers.iter()));
        let tried = RefCell::new(Vec::new());
        let write = |fd| {
            tried.borrow_mut().push(fd);
            *answers.borrow_mut().next().expect("no more is written")
        };
        let end = persist(10, 7, first, |_| *found.next().expect("no more is looked for"), write);
        assert_eq!((found.count(), answers.into_inner().count()), (0, 0), "not all was asked for");
        (end, tried.into_inner())
    }

    const INTERRUPTED: isize = -(libc::EINTR as isize);
    const CLOSED: isize = -(libc::EBADF as isize);
    const BROKEN: isize = -(libc::EPIPE as isize);

    #[test]
    fn an_interrupted_write_is_made_again_a_few_times() {
        assert_eq!(play(INTERRUPTED, &[Some(7)], &[10]), (Ok(()), vec![7]));
        assert_eq!(play(INTERRUPTED, &[Some(7); 2], &[INTERRUPTED, 10]), (Ok(()), vec![7; 2]));
        assert_eq!(
            play(INTERRUPTED, &[Some(7); 4], &[INTERRUPTED, INTERRUPTED, INTERRUPTED, 10]),
            (Ok(()), vec![7; 4])
        );
        assert_eq!(play(INTERRUPTED, &[Some(7); 4], &[INTERRUPTED; 4]), (Err(libc::EINTR), vec![7; 4]));
    }

    #[test]
    fn what_our_own_file_answers_stands() {
        assert_eq!(play(CLOSED, &[Some(7); 2], &[CLOSED]), (Err(libc::EBADF), vec![7]));
        // Just opened again by another thread.
        assert_eq!(play(CLOSED, &[Some(7)], &[10]), (Ok(()), vec![7]));
        assert_eq!(play(-(libc::EINVAL as isize), &[Some(7)], &[]), (Err(libc::EINVAL), vec![]));
        // A part of it: the disk is full.
        assert_eq!(play(3, &[Some(7)], &[]), (Err(libc::ENOSPC), vec![]));
        assert_eq!(play(INTERRUPTED, &[Some(7); 2], &[4]), (Err(libc::ENOSPC), vec![7]));
    }

    #[test]
    fn whatever_anothers_descriptor_answers_the_message_goes_to_ours() {
        for answer in [CLOSED, BROKEN, INTERRUPTED, 0, 3, -(libc::EAGAIN as isize)] {
            assert_eq!(play(answer, &[Some(8)], &[10]), (Ok(()), vec![8]));
            assert_eq!(play(answer, &[Some(8), Some(9)], &[CLOSED, 10]), (Ok(()), vec![8, 9]));
        }
        assert_eq!(play(BROKEN, &[None], &[]), (Err(libc::EPIPE), vec![]));
        assert_eq!(play(BROKEN, &[Some(8); 3], &[CLOSED; 2]), (Err(libc::EBADF), vec![8; 2]));
    }
}
