//! Writes messages to the marker, and makes sure that they are not written to another file.
//!
//! To check at each event whether the descriptor still refers to the marker would take a second system call. Instead,
//! the descriptor is checked by `fstat` at these moments:
//!
//! - before the first event of a thread, and every 256th event after that (on Android, of all threads that share a
//!   counter: see [`is_due`]);
//! - by [`Marker::check`], which is called when tracing is switched on or off;
//! - when a message was not written completely, as happens if the descriptor is closed, or refers to a pipe without a
//!   reader or a full or unconnected socket.
//!
//! If the descriptor refers to another file, messages are never written to this descriptor number again. The marker is
//! opened with another number, and the message is written to the new descriptor. If the marker can't be opened,
//! messages are dropped, and at each message the library tries again to open the marker. If the marker is a regular
//! file, and grew past a size limit of the process (`RLIMIT_FSIZE`), the kernel would raise a signal. So when a check
//! finds such a limit, messages are dropped as long as the limit exists.

use std::sync::atomic::Ordering;

use super::open::{DescriptorCheck, close, inherit_checked, look, open_checked};
use super::{Marker, ON_FAILURE, Source, number_of};
use crate::process::Undisturbed;
use crate::thread;

impl Marker {
    /// Writes one message as one event. Returns whether the kernel took the whole message.
    ///
    /// This never changes errno. The write can block or raise a signal only if the program has done one of two things
    /// since the last check: opened a pipe or socket with the number of the marker's descriptor, or set a limit to the
    /// size of files. If a write fails because the program has closed the descriptor or reused its number, the marker
    /// is opened again and the message is written.
    #[cfg_attr(debug_assertions, inline(never))]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn write(&self, message: &[u8]) -> bool {
        let mut fd = self.fd.load(Ordering::Relaxed);
        if is_due() {
            fd = self.look_at(fd);
        }
        let written = write_once(fd, message);
        written == message.len() as isize || self.write_again(fd, message, written)
    }

    /// Checks whether the descriptor still refers to the marker, and opens the marker again if it does not.
    pub fn check(&self) {
        self.look_at(self.fd.load(Ordering::Relaxed));
    }

    /// Checks a descriptor. Returns the descriptor to which messages are written from now on or, if there is no such
    /// descriptor, an inverted number, which is negative, so that no write to it succeeds.
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
        // The callback is called at the first failure, and then more and more rarely.
        if dropped.is_power_of_two() {
            ON_FAILURE.get()();
        }
        false
    }

    /// Returns a valid descriptor of the marker. Checks the descriptor `seen`, and replaces it if necessary, unless
    /// another thread has already replaced it. Returns `None` if there is no valid descriptor.
    fn find(&self, seen: i32) -> Option<i32> {
        if thread::has_left_descriptors() {
            return None; // This thread does not share the descriptors of the other threads.
        }
        let present = self.fd.load(Ordering::Relaxed);
        if present != seen && present >= 0 {
            return Some(present); // Another thread has replaced `seen`.
        }
        let number = number_of(present);
        let new = match look(number, self.kind, self.identity) {
            DescriptorCheck::Ours => Some(number),
            DescriptorCheck::Limited => None,
            DescriptorCheck::Another => self.reopen(number),
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

    /// Opens the marker again, with another number than `stale`. If the new descriptor had the same number, a thread
    /// that still uses the stale descriptor would take it for valid.
    fn reopen(&self, stale: i32) -> Option<i32> {
        let opened = match &self.source {
            Source::Path(path) => open_checked(path, Some(stale)),
            Source::Inherited(fd) => inherit_checked(*fd, self.identity, Some(stale)),
        };
        let opened = opened.ok()?;
        if opened.kind == self.kind && opened.identity == self.identity {
            return Some(opened.fd);
        }
        close(opened.fd); // There is another file at the path now, not the one that the user named.
        None
    }
}

/// Handles a message that was not written completely. `find` checks the descriptor. Then the message is written
/// again, if the descriptor has changed or the write was interrupted. Returns the errno if the message could
/// not be written.
fn persist(
    length: usize,
    mut fd: i32,
    mut written: isize,
    mut find: impl FnMut(i32) -> Option<i32>,
    write: impl Fn(i32) -> isize,
) -> Result<(), i32> {
    let (mut code, mut was_closed) = (0, false);
    // A write may be interrupted, or the program may close the descriptor, even again while the marker is being opened
    // again. More than four such events in a row are not a coincidence, so the write is not tried again.
    for _ in 0..4 {
        if written == length as isize {
            return Ok(());
        }
        code = if written < 0 { -written as i32 } else { libc::ENOSPC };
        match find(fd) {
            Some(present) if present != fd => fd = present,
            // The descriptor refers to the marker, so this is usually an error of the marker itself: tracefs returns
            // EBADF while `tracing_on` is 0. But perhaps the descriptor was closed, and another thread has opened the
            // marker with the same number since the write. So after EBADF, the write is tried once more.
            Some(_) if code == libc::EINTR => {}
            Some(_) if code == libc::EBADF && !was_closed => was_closed = true,
            _ => break,
        }
        written = write(fd);
    }
    if written == length as isize { Ok(()) } else { Err(code) }
}

/// Returns whether the calling thread should check the descriptor: at its first message and at every 256th message
/// after it.
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

/// Returns whether the calling thread should check the descriptor: at the first message of its counter, and at every
/// 256th message after it. The address of the thread's stack, in units of 1 MiB, selects one of 16 counters. On
/// Android, stacks are usually about 1 MiB apart. A thread-local counter would need a call and an allocation, because
/// Android has no native thread-locals before version 10. Threads that share a counter check the descriptor at every
/// 256th of their messages together, so the first message of a thread may not be checked. A thread whose stack spans
/// several units uses several counters.
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

/// Makes one `write(2)`. Returns the number of bytes written, or a negated errno. Leaves errno unchanged.
#[cfg(bare)]
#[inline(always)]
fn write_once(fd: i32, message: &[u8]) -> isize {
    let result: isize;
    // SAFETY: the kernel reads `message.len()` readable bytes. The call changes no memory of the program and only the
    // registers rax, rcx and r11, or x0. The kernel uses only the low half of the register with `fd`.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_write => result,
            in("rdi") fd,
            in("rsi") message.as_ptr(),
            in("rdx") message.len(),
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack, readonly),
        );
        #[cfg(target_arch = "aarch64")]
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

/// Makes one `write(2)`. Returns the number of bytes written, or a negated errno. Leaves errno unchanged.
#[cfg(not(bare))]
#[inline(always)]
fn write_once(fd: i32, message: &[u8]) -> isize {
    use crate::system::{Errno, ErrnoGuard, file};
    let _errno = ErrnoGuard::new();
    let failed = |Errno(code)| -(code as isize);
    file::write(fd, message).map_or_else(failed, |taken| taken as isize)
}

#[cfg(test)]
mod tests {
    use super::persist;
    use std::cell::RefCell;

    /// Simulates the write of a message. The first `write(2)` returned `first`, and each further `write(2)` returns the
    /// next value of `answers`. Each search for the marker's descriptor returns the next value of `found`. Returns the
    /// result, and the descriptors that were written to.
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
        // Another thread has just opened the marker again.
        assert_eq!(play(CLOSED, &[Some(7)], &[10]), (Ok(()), vec![7]));
        assert_eq!(play(-(libc::EINVAL as isize), &[Some(7)], &[]), (Err(libc::EINVAL), vec![]));
        // Only a part of the message was written, because the disk is full.
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
