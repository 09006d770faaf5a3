//! Tests the files that replace memory files on a kernel without `memfd_create`: a seccomp filter answers this call as
//! a kernel before 3.17 does. This test program contains only this test, because a process can't remove a filter.

#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "the filter is installed as a C program would")]

use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, fchown};
use std::sync::atomic::{AtomicU32, Ordering};

use atrace_sys::memory::{Region, fixed_size, has_memory_files, sealed_file, sealed_size};

fn without_memory_files() {
    let op = |code: u32, k: u32, jf: u8| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let mut filter = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_memfd_create as u32, 1),
        op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32, 0),
        op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: `program` points to the live filter and has its length.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

#[test]
fn a_file_without_a_name_takes_their_place() {
    const SIZE: usize = 10_000;
    assert!(has_memory_files());
    let unsealed = tempfile::tempfile_in("/dev/shm").unwrap();
    assert_eq!(sealed_size(unsealed.as_raw_fd()).unwrap_err().0, libc::EPERM);
    without_memory_files();
    assert!(!has_memory_files());

    let file = File::from(OwnedFd::from(sealed_file(c"atrace-test-memory", SIZE).unwrap()));
    let data = file.metadata().unwrap();
    assert_eq!((data.len(), data.nlink(), data.mode() & 0o777), (SIZE as u64, 0, 0o600));
    // The file's memory is already allocated, so a write to a mapping of the file can't fail for lack of memory.
    assert!(data.blocks() * 512 >= SIZE as u64, "{}", data.blocks());
    assert_eq!((sealed_size(file.as_raw_fd()).unwrap(), fixed_size(file.as_raw_fd()).unwrap()), (SIZE, SIZE));
    let (one, other) =
        (Region::of_file(file.as_raw_fd(), SIZE).unwrap(), Region::of_file(file.as_raw_fd(), SIZE).unwrap());
    one.get::<AtomicU32>(8192).unwrap().store(7, Ordering::Relaxed);
    assert_eq!(other.get::<AtomicU32>(8192).unwrap().load(Ordering::Relaxed), 7);

    // A file of another user is not accepted, because that user could shorten it.
    if fchown(&file, Some(64_001), None).is_ok() {
        assert_eq!(sealed_size(file.as_raw_fd()).unwrap_err().0, libc::EPERM);
        assert_eq!(fixed_size(file.as_raw_fd()).unwrap_err().0, libc::EPERM);
    }
}
