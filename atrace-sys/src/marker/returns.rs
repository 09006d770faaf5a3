//! Making the first return after a system call cheap, on processors where the kernel makes it dear: an option that is
//! off, the feature `guard-returns`.
//!
//! A processor predicts where a `ret` goes by a small stack of its own, which each `call` pushes to. On AMD
//! processors with the weakness SRSO (Zen 1 to 4), Linux returns from each of its functions through a "safe
//! return", which leaves an entry behind. After a system call that stack therefore holds nothing but
//! addresses in the kernel, and the first `ret` of the program, usually that of `write()` itself, is
//! predicted to go there.
//!
//! [`guard`] pushes entries that point at a trap, where the processor stops guessing at once. The returns
//! that follow are mispredicted still, but for a few nanoseconds. (One entry would do for one return; with a
//! single one, the processor sometimes guessed on past it.)
//!
//! It is off because in about one process in ten it does nothing, and nobody knows why. No promise rests on it.
//!
//! Elsewhere entries too many would have the returns of all the callers mispredicted, so [`are_costly`] must
//! be asked first.

/// Tells whether this kernel uses safe returns, and nothing keeps the processor from being given an entry too
/// many.
pub(super) fn are_costly() -> bool {
    const STATE: &std::ffi::CStr = c"/sys/devices/system/cpu/vulnerabilities/spec_rstack_overflow";
    let mut text = [0; 128];
    let length = crate::system::file::read_start(STATE, &mut text);
    let text = text.get(..length).unwrap_or_default();
    text.windows(8).any(|part| part.eq_ignore_ascii_case(b"safe ret")) && !has_shadow_stack()
}

/// Tells whether this thread has a shadow stack, which a call without its return would put out of step.
fn has_shadow_stack() -> bool {
    let mut shadow: u64 = 0;
    // SAFETY: `rdsspq rax`, spelt out for assemblers that don't know it: reads the shadow stack's pointer,
    // and does nothing where there is none (it is a no-op on older processors).
    unsafe {
        std::arch::asm!(".byte 0xf3, 0x48, 0x0f, 0x1e, 0xc8", inout("rax") shadow, options(nomem, nostack, preserves_flags));
    }
    shadow != 0
}

/// Has the next four `ret`s predicted to go to a trap.
#[inline(always)]
pub(super) fn guard() {
    // SAFETY: four calls, each to the place behind the next instruction, then their return addresses are
    // dropped; nothing else is touched. (Without `nostack`, so that the compiler keeps nothing below the
    // stack pointer.)
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
        // Either is right, by machine; asking must not fail.
        let costly = super::are_costly();
        assert_eq!(costly, super::are_costly());
    }
}
