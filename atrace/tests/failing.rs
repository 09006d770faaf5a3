//! Tests Perfetto's backend where the system denies something, or the service does not answer.

#![cfg(not(no_tracing))]

mod common;

#[allow(unsafe_code, reason = "limits and filters are set, and descriptors used, as C programs do it")]
mod cases {
    use std::fs;

    use atrace::perfetto;
    use atrace::*;

    use crate::common::{self, Place, case};

    const TAG: AtraceTag = AtraceTag::App;

    /// Tests a process that may make only small files. A memory file that is larger would raise SIGXFSZ.
    #[test]
    fn a_file_size_limit_refuses_a_recording_and_ends_no_program() {
        let name = case!({
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("trace");
            fs::write(&path, "before").unwrap();
            common::limit(libc::RLIMIT_FSIZE, 4096, libc::RLIM_INFINITY).unwrap();
            let said = perfetto::record_to(&path).unwrap_err();
            assert_eq!(said.raw_os_error(), Some(libc::EFBIG), "{said}");
            assert_eq!(fs::read(&path).unwrap(), b"before");
        });
        Place::file().run(&name);
    }

    /// Tests that the memory of a recording that has failed is used again.
    #[test]
    fn failed_recordings_take_no_more_address_space() {
        fn size_kib() -> u64 {
            let status = fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
            line.trim().trim_end_matches(" kB").parse().unwrap()
        }
        let name = case!({
            let fail = || {
                let recording = perfetto::record_to("/dev/full").unwrap();
                atrace_instant(TAG, "lost");
                assert_eq!(recording.finish().unwrap_err().raw_os_error(), Some(libc::ENOSPC));
            };
            fail();
            let first = size_kib();
            (0..4).for_each(|_| fail());
            assert!(size_kib() < first + 1024, "{} KiB after {first}", size_kib());
        });
        Place::file().run(&name);
    }
}
