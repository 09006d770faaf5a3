//! A workaround for slow returns after a system call on some AMD processors. It is behind the feature
//! `guard-returns`, which is off by default.
//!
//! A processor predicts the target of a `ret` with a small stack, to which each `call` pushes. On AMD processors with
//! the vulnerability SRSO (Zen 1 to 4), Linux returns from each of its functions through a "safe return", which
//! leaves an entry on that stack. So after a system call the stack contains only kernel addresses, and the first
//! `ret` of the program, usually that of `write()` itself, is predicted to go there.
//!
//! [`guard`] pushes entries that point to a trap, where speculation stops at once. The following returns are still
//! mispredicted, but each costs only a few nanoseconds. (One entry would suffice for one return, but with a single
//! entry the processor sometimes speculated past it.)
//!
//! The feature is off because it has no effect in about one process in ten, for a reason that is not known. No
//! promise rests on it.
//!
//! On other processors the additional entries would make the returns of all callers mispredicted. So [`are_costly`]
//! must be checked first.

/// Returns whether this kernel uses safe returns and the processor may be given additional entries.
pub(super) fn are_costly() -> bool {
    const STATE: &std::ffi::CStr = c"/sys/devices/system/cpu/vulnerabilities/spec_rstack_overflow";
    let mut text = [0; 128];
    let length = crate::system::file::read_start(STATE, &mut text);
    let text = text.get(..length).unwrap_or_default();
    text.windows(8).any(|part| part.eq_ignore_ascii_case(b"safe ret")) && !has_shadow_stack()
}

/// Returns whether this thread has a shadow stack, which a call without a return would bring out of step.
fn has_shadow_stack() -> bool {
    let mut shadow: u64 = 0;
    // SAFETY: `rdsspq rax`, encoded by hand for assemblers that do not know it, reads the shadow stack pointer. On
    // processors without shadow stacks it is a no-op.
    unsafe {
        std::arch::asm!(".byte 0xf3, 0x48, 0x0f, 0x1e, 0xc8", inout("rax") shadow, options(nomem, nostack, preserves_flags));
    }
    shadow != 0
}

/// Makes the processor predict that the next four `ret`s go to a trap.
#[inline(always)]
pub(super) fn guard() {
    // SAFETY: makes four calls, each to code within this block, and then drops their return addresses. It changes
    // nothing else. (It is without `nostack`, so that the compiler keeps nothing below the stack pointer.)
    unsafe {
        std::arch::asm!(
            "call 3f",
            "2:",
            "lfence",
            "jmp 2b",
            "3:",
            "call 4f",
            "jmp 2b",
            "4:",
            "call 5f",
            "jmp 2b",
            "5:",
            "call 6f",
            "jmp 2b",
            "6:",
            "lea rsp, [rsp + 32]",
            options(preserves_flags)
        );
    }
}

#[cfg(test)]
mod tests {
    #[inline(never)]
    fn guarded(depth: u32) -> u32 {
        let below = if depth == 0 { 0 } else { guarded(depth - 1) };
        super::guard();
        below + 1
    }

    #[test]
    fn guarded_functions_return() {
        assert_eq!(guarded(100), 101);
    }

    #[test]
    fn the_question_is_answered() {
        // The answer depends on the machine, but must be the same each time.
        let costly = super::are_costly();
        assert_eq!(costly, super::are_costly());
    }
}
