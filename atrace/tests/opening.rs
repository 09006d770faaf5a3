//! Tests how a marker is opened: by which paths, with which flags, and with which descriptor number.
#![cfg(target_os = "linux")]

mod common;

#[allow(unsafe_code, reason = "calls are refused, and descriptors looked at, as a C program would")]
mod cases {
    use std::fs::File;
    use std::os::fd::{AsRawFd as _, IntoRawFd as _};
    use std::path::Path;
    use std::process::Command;

    use atrace::*;
    use atrace_sys::marker::{MARKER_PATHS, Marker};

    use crate::common::{self, Place, case, identity, is_root, terminal};

    /// Runs a case in a mount namespace in which `at` is the only path of a kernel marker. The marker belongs to a ring
    /// buffer of this test.
    fn run_at(place: &Place, at: &str, name: &str) {
        // The script first enters the buffer's directory. Then it mounts an empty file system over each of the two
        // possible directories of tracefs, and mounts the buffer at `at`.
        let script = "cd \"$1\" && mount -t tmpfs none /sys/kernel/debug && mkdir -p /sys/kernel/debug/tracing && \
             mount --bind . /mnt && mount -t tmpfs none /sys/kernel/tracing && mount --bind /mnt \"$2\" && \
             cd / && shift 2 && exec \"$@\"";
        let mut case = place.command(name);
        case.env_remove("ATRACE_MARKER");
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script, "sh"]).arg(place.instance().path()).arg(at);
        command.arg(case.get_program()).args(case.get_args());
        for (name, value) in case.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        common::run(&mut command);
    }

    #[test]
    fn the_kernels_marker_is_found_at_both_of_its_places() {
        let name = case!({ atrace_instant(AtraceTag::App, "found") });
        if !is_root(&name) {
            return;
        }
        for path in MARKER_PATHS {
            let Some(place) = Place::kernel(&name).map(Place::on) else { return };
            let directory = Path::new(path.to_str().unwrap()).parent().unwrap();
            run_at(&place, directory.to_str().unwrap(), &name);
            assert_eq!(place.messages().len(), 1, "{path:?}");
        }
    }

    /// Makes the calls that return the attributes of files (`fstat`, for example) fail with `EACCES`, as SELinux does
    /// on Android.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn refuse_attributes() {
        let calls = [libc::SYS_fstat, libc::SYS_newfstatat, libc::SYS_statx];
        let op = |code: u32, k: u32, jt: u8| libc::sock_filter { code: code as u16, jt, jf: 0, k };
        let mut filter = vec![op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
        for (call, after) in calls.into_iter().zip([3, 2, 1]) {
            filter.push(op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32, after));
        }
        filter.push(op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0));
        filter.push(op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EACCES as u32, 0));
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: `program` points to the live filter and has its length.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
        }
    }

    /// Returns the number of the marker's descriptor.
    fn number(marker: &Marker) -> i32 {
        marker.identity().to_string().split(':').next().unwrap().parse().unwrap()
    }

    #[test]
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn a_marker_that_may_not_be_looked_at_is_written_to_all_the_same() {
        let name = case!({
            let other = tempfile::tempfile().unwrap();
            let (_master, terminal) = terminal();
            let pipe = std::env::temp_dir().join(format!("atrace-pipe-{}", common::pid()));
            let path = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
            // SAFETY: the path is a C string.
            let reader = unsafe {
                assert_eq!(libc::mkfifo(path.as_ptr(), 0o600), 0);
                libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_NONBLOCK)
            };
            refuse_attributes();
            let marker = Marker::open().unwrap();
            assert_eq!(marker.kind(), atrace_sys::marker::MarkerKind::Tracefs);
            for _ in 0..600 {
                assert!(marker.write(b"unseen"));
            }
            // Without the attributes, only the kernel's marker is trusted: other files are refused.
            assert!(Marker::open_named(terminal.as_os_str()).is_err());
            let refused = Marker::open_named(pipe.as_os_str());
            std::fs::remove_file(&pipe).unwrap();
            assert!(refused.is_err());
            let mut place = libc::pollfd { fd: reader, events: libc::POLLIN, revents: 0 };
            // SAFETY: `place` is one writable pollfd.
            let is_touched = unsafe { libc::poll(&mut place, 1, 0) };
            assert_eq!(is_touched, 0, "its reader saw a writer come and go");
            assert!(Marker::open_named(format!("fd:{}:0:0", other.as_raw_fd()).as_ref()).is_err());
            // SAFETY: both descriptors are open. Only the marker uses the descriptor that is replaced.
            unsafe { libc::dup2(other.as_raw_fd(), number(&marker)) };
            marker.check();
            for _ in 0..600 {
                assert!(marker.write(b"once more"));
            }
        });
        if !is_root(&name) {
            return;
        }
        let Some(place) = Place::kernel(&name) else { return };
        run_at(&place, "/sys/kernel/tracing", &name);
        assert_eq!(place.messages().len(), 1200);
    }

    #[test]
    fn opening_waits_for_nobody() {
        let name = case!({
            let (_master, terminal) = terminal();
            // SAFETY: this process leads no process group.
            assert!(unsafe { libc::setsid() } > 0);
            let refused = Marker::open_named(terminal.as_os_str()).unwrap_err().to_string();
            assert!(refused.contains("is a terminal"), "{refused}");
            let own = File::open("/dev/tty").unwrap_err();
            assert_eq!(own.raw_os_error(), Some(libc::ENXIO), "the terminal became this process' own");
            let marker = Marker::open_named(&std::env::var_os("ATRACE_MARKER").unwrap()).unwrap();
            // SAFETY: an open descriptor.
            let flags = unsafe { libc::fcntl(number(&marker), libc::F_GETFL) };
            assert_eq!(flags & (libc::O_ACCMODE | libc::O_APPEND), libc::O_WRONLY | libc::O_APPEND);
            assert_ne!(flags & libc::O_NONBLOCK, 0, "it would wait for a reader of a pipe that came there");
        });
        Place::file().run(&name);
    }

    #[test]
    fn number_zero_is_a_number() {
        let name = case!({
            let path = std::env::var_os("ATRACE_MARKER").unwrap();
            // SAFETY: no code here uses the standard input.
            assert_eq!(unsafe { libc::close(0) }, 0);
            let marker = Marker::open_named(&path).unwrap();
            assert!(number(&marker) > 0 && marker.write(b"high "));
            let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: the structure is alive.
            let mut limit_to = |number| unsafe {
                libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
                limit.rlim_cur = number;
                assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
            };
            let other = File::options().append(true).open(&path).unwrap();
            // SAFETY: an open descriptor, and a number that is free.
            unsafe { assert_eq!(libc::dup2(other.as_raw_fd(), 50), 50) };
            drop(other);
            limit_to(1);
            let inherited = format!("fd:50:{}", identity(Path::new(&path)));
            let marker = Marker::open_named(inherited.as_ref()).unwrap();
            assert!(number(&marker) == 0 && marker.write(b"from 50 "));
            drop(marker);
            let marker = Marker::open_named(&path).unwrap();
            assert!(number(&marker) == 0 && marker.write(b"at zero "));
            drop(marker);
            limit_to(100);
            assert_eq!(File::open(&path).unwrap().into_raw_fd(), 0);
            let refused = Marker::open_named(format!("fd:0:{}", identity(Path::new(&path))).as_ref());
            assert!(refused.unwrap_err().to_string().contains("not open for writing"));
            // SAFETY: no other code uses the descriptor 0.
            unsafe { libc::close(0) };
            assert_eq!(File::options().append(true).open(&path).unwrap().into_raw_fd(), 0);
            let inherited = Marker::open_named(format!("fd:0:{}", identity(Path::new(&path))).as_ref());
            assert!(inherited.unwrap().write(b"inherited"));
        });
        let place = Place::file();
        place.run(&name);
        assert_eq!(place.text(), "high from 50 at zero inherited");
    }
}
