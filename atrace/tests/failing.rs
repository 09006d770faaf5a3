//! Tests Perfetto's backend if the system refuses something, or if the service does not answer.

#![cfg(not(no_tracing))]

mod common;

#[allow(unsafe_code, reason = "limits and filters are set, and descriptors used, as C programs do it")]
mod cases {
    use std::fs;

    use atrace::perfetto;
    use atrace::*;

    use crate::common::{self, Place, case};

    const TAG: AtraceTag = AtraceTag::App;

    /// Tests a process with a small limit of the size of files (`RLIMIT_FSIZE`). A memory file that exceeds the limit
    /// would raise SIGXFSZ.
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

    /// Tests that later recordings use the memory of a recording that has failed.
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

    /// Tests a service that does not answer. Once the process has waited for the answer, its events make no system
    /// call.
    #[test]
    #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn a_silent_service_costs_no_system_call_at_each_event() {
        use std::os::unix::net::UnixListener;

        let name = case!({
            perfetto::connect();
            for call in
                [libc::SYS_sigaltstack, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigaction, libc::SYS_ppoll]
            {
                common::deny(call, libc::SECCOMP_RET_KILL_PROCESS, 0);
            }
            (0..100).for_each(|_| atrace_instant(TAG, "lost"));
            let lost = perfetto::status().lost();
            // SAFETY: no preconditions. A return from the test would make denied system calls.
            unsafe { libc::_exit((lost != 100).into()) };
        });
        let place = Place::file();
        let socket = place.path("socket");
        let _listener = UnixListener::bind(&socket).unwrap();
        let mut command = place.command(&name);
        let ran = common::end_of(command.env("PERFETTO_PRODUCER_SOCK_NAME", socket).spawn().unwrap());
        assert!(ran.status.success(), "{ran:?}");
    }

    /// Tests a program that puts its own socket at the number of the connection's descriptor. The connection's thread,
    /// which can't get its own table of descriptors because `close_range` is denied, must not read from the socket,
    /// write to it or close it.
    #[test]
    #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn a_reused_number_of_the_connection_is_left_alone() {
        use std::io::{Read as _, Write as _};
        use std::os::fd::{AsRawFd as _, FromRawFd as _};
        use std::os::unix::net::{UnixListener, UnixStream};
        use std::time::Duration;

        use atrace_cli::service::{Service, Storage};

        use crate::common::until;

        let name = case!({
            common::deny(libc::SYS_close_range, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32, 0);
            perfetto::connect();
            until("a session", || perfetto::status().sessions() == 1);
            let all = common::descriptors();
            let is_socket = |path: &std::path::Path| path.to_str().unwrap().starts_with("socket:");
            let numbers: Vec<_> = all.iter().filter(|(_, path)| is_socket(path)).map(|it| it.0).collect();
            let [number] = numbers[..] else { panic!("{all:?}") };
            assert!(number > 100, "{number}");
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            // SAFETY: both are open. The library also uses `number`, and must tolerate this change.
            assert_eq!(unsafe { libc::dup2(theirs.as_raw_fd(), number) }, number);
            ours.write_all(&[7; 100]).unwrap();
            (0..10).for_each(|_| atrace_instant(TAG, "written"));
            std::thread::sleep(Duration::from_secs(1));
            // SAFETY: the `dup2` above has opened `number`, and no other owner closes it.
            let mut reused = unsafe { UnixStream::from_raw_fd(number) };
            let mut bytes = [0; 200];
            reused.set_nonblocking(true).unwrap();
            assert_eq!(reused.read(&mut bytes).unwrap(), 100);
            ours.set_nonblocking(true).unwrap();
            assert_eq!(ours.read(&mut bytes).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
            until("it is connected again", || perfetto::status().sessions() == 1);
        });
        let place = Place::file();
        let socket = place.path("socket");
        // SAFETY: no preconditions.
        let user = unsafe { libc::geteuid() };
        let keep = Storage::Ring { bytes: 1 << 20 };
        let _service = Service::start(UnixListener::bind(&socket).unwrap(), user, keep).unwrap();
        common::run(place.command(&name).env("PERFETTO_PRODUCER_SOCK_NAME", socket));
    }
}
