//! Delays threads, as a busy machine does.

#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of this")]
#![allow(unsafe_code, reason = "a filter of system calls is set as a C program would")]

/// Delays each named thread that the calling thread starts: the thread's first system call, which sets its name, takes
/// half a second. On a busy machine, a thread may have to wait as long for a processor. Returns false if the kernel
/// does not support this (before Linux 5.5).
pub fn named_threads() -> bool {
    let op = |code: u32, k: u32, jf: u8| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let (load, is) =
        (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K);
    // In the data that the kernel passes to the filter, the system call's number is at offset 0. Its first argument has
    // eight bytes and begins at offset 16.
    let first = 16 + if cfg!(target_endian = "big") { 4 } else { 0 };
    let mut filter = [
        op(load, 0, 0),
        op(is, libc::SYS_prctl as u32, 3),
        op(load, first, 0),
        op(is, libc::PR_SET_NAME as u32, 1),
        op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_USER_NOTIF, 0),
        op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    let (mode, flag) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
    // SAFETY: `program` points to the live filter and has its length.
    let listener = unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        libc::syscall(libc::SYS_seccomp, mode, flag, &raw const program) as i32
    };
    if listener < 0 {
        return false;
    }
    std::thread::spawn(move || {
        // SAFETY: the kernel writes to `call` and reads `answer`, and both have the types that the kernel uses.
        unsafe {
            loop {
                let mut call: libc::seccomp_notif = std::mem::zeroed();
                assert_eq!(libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut call), 0);
                libc::usleep(500_000);
                let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
                let mut answer = libc::seccomp_notif_resp { id: call.id, val: 0, error: 0, flags };
                assert_eq!(libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer), 0);
            }
        }
    });
    true
}
