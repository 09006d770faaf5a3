//! Tests the data that a forked child inherits from its parent.
//!
//! This test program contains only this test. A bare `clone` copies the locks of the C library in their present state,
//! so no other thread may fork or allocate at that time. In glibc, for example, a thread that forks holds
//! `atfork_lock`, and a child that has a copy of the held lock would wait for it forever.
#![cfg(not(no_tracing))]
#![allow(unsafe_code, reason = "forks as C does it")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use atrace_sys::fork::{PerProcess, Turn, generation};

fn fork() -> libc::pid_t {
    // SAFETY: the child ends without returning from `in_child`.
    unsafe { libc::fork() }
}

/// Forks the process by a bare `clone`, which libc does not notice.
fn bare_clone() -> libc::pid_t {
    // SAFETY: the only flag is the signal at the child's end. The child ends without returning from `in_child`.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    libc::pid_t::try_from(child).unwrap()
}

/// Forks the process with the function `how`, and calls `body` in the child. Returns whether `body` returned true in
/// the child.
fn in_child(how: fn() -> libc::pid_t, body: impl FnOnce() -> bool) -> bool {
    let child = how();
    assert!(child >= 0);
    if child == 0 {
        let held = catch_unwind(AssertUnwindSafe(body)).unwrap_or(false);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!held)) };
    }
    let mut status = 0;
    // SAFETY: `status` is writable.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status == 0
}

#[test]
fn nothing_of_the_parents_is_a_childs() {
    // This function is called first, because it needs a process that has not yet created the page that the kernel wipes
    // in children.
    #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
    a_child_has_a_value_of_its_own_where_the_kernel_only_says_that_it_wipes();
    a_child_has_a_value_of_its_own_even_if_the_parents_is_locked(&[fork, bare_clone]);
    a_child_takes_the_turn_of_its_parent();
}

/// Tests a kernel that accepts the advice to wipe pages (`madvise`) but does not wipe them, like qemu's user mode,
/// which returns 0 for any advice.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
fn a_child_has_a_value_of_its_own_where_the_kernel_only_says_that_it_wipes() {
    let heeds_no_advice = || {
        let op = |code: u32, k: u32, jf: u8| libc::sock_filter { code: code as u16, jt: 0, jf, k };
        let mut filter = [
            op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
            op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_madvise as u32, 1),
            op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO, 0),
            op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: `program` points to the live filter and has its length.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
        }
        a_child_has_a_value_of_its_own_even_if_the_parents_is_locked(&[fork, bare_clone]);
        true
    };
    assert!(in_child(fork, heeds_no_advice));
}

fn a_child_has_a_value_of_its_own_even_if_the_parents_is_locked(ways: &[fn() -> libc::pid_t]) {
    static PLACE: PerProcess<Mutex<u32>> = PerProcess::new();
    let parents = PLACE.get_or_make(|| Mutex::new(1));
    let _held = parents.lock().unwrap();
    let by = generation();
    let body = || {
        let is_new = PLACE.get().is_none() && generation().number() > by.number();
        let is_heir = PLACE.inherited().is_some_and(|heirloom| std::ptr::eq(heirloom, parents));
        let own = PLACE.get_or_make(|| Mutex::new(2));
        let child = generation();
        let grandchild = in_child(fork, || PLACE.get().is_none() && generation().number() > child.number());
        is_new && is_heir && grandchild && *own.lock().unwrap() == 2
    };
    assert!(ways.iter().all(|way| in_child(*way, body)));
    assert!(std::ptr::eq(PLACE.get().unwrap(), parents) && generation() == by);
}

/// Tests a child that is forked while its parent does the work of a [`Turn`] (which runs work on one thread at a time).
/// The child can do such work itself.
fn a_child_takes_the_turn_of_its_parent() {
    static TURN: Turn = Turn::new();
    let mut times = 0;
    TURN.run(|| {
        times += 1;
        let works = || {
            let mut works = 0;
            TURN.run(|| works += 1);
            works == 1
        };
        assert!(in_child(fork, works));
    });
    assert_eq!(times, 1);
}
