//! Tests to which sink events are written, which sinks are refused, and what happens when a sink fails.

mod common;

#[allow(unsafe_code, reason = "descriptors, limits and mounts are set up as a C program would")]
mod cases {
    use std::fs::{File, OpenOptions};
    use std::io::{Read as _, Write as _};
    use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
    use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
    use std::os::unix::process::CommandExt as _;
    use std::path::Path;
    use std::process::Stdio;

    use atrace::*;
    use atrace_cli::tracefs;

    use crate::common::{
        self, Place, case, control, descriptor_of, descriptors, errno, identity, is_root, limited, set_errno,
        terminal,
    };

    const TAG: AtraceTag = AtraceTag::App;

    /// Checks a program in which an environment variable has an invalid value: no event is written, the program
    /// continues, and [`sink`] names the reason.
    fn is_off() {
        let before = descriptors();
        for _ in 0..3 {
            atrace_begin(TAG | AtraceTag::Always, "x");
            atrace_end(TAG | AtraceTag::Always);
        }
        assert_eq!(sink().kind(), "None");
        assert!(!atrace_is_tag_enabled(AtraceTag::Always));
        assert_eq!(sink().dropped(), 0);
        assert_eq!(descriptors(), before, "a descriptor was left open");
        println!("SINK {}", sink());
    }

    fn refused_with(
        name: &str,
        place: &Place,
        variable: &str,
        value: impl AsRef<std::ffi::OsStr>,
        reason: &str,
    ) {
        let ran = common::run(place.command(name).env(variable, value.as_ref()));
        assert_eq!(ran.stderr.lines().count(), 1, "{:?}: {}", value.as_ref(), ran.stderr);
        assert!(
            ran.stderr.starts_with("atrace: ") && ran.stderr.ends_with("; tracing is off\n"),
            "{}",
            ran.stderr
        );
        assert!(
            ran.stderr.contains(reason),
            "{:?} is not refused for {reason:?}: {}",
            value.as_ref(),
            ran.stderr
        );
        assert!(ran.said("SINK")[0].starts_with("nowhere: "), "{}", ran.stdout);
        assert_eq!(place.text(), "");
    }

    #[test]
    fn a_wrong_backend_is_told_once() {
        let name = case!({ is_off() });
        let place = Place::file().on();
        let reason = "is not one of marker, cutils";
        for value in ["Marker", "marker ", "kernel", "cutil", "\n", "two\nlines", "none:"] {
            refused_with(&name, &place, "ATRACE_BACKEND", value, reason);
        }
        refused_with(
            &name,
            &place,
            "ATRACE_BACKEND",
            "cutils:/nonexistent/libcutils.so",
            "/nonexistent/libcutils.so",
        );
        refused_with(&name, &place, "ATRACE_BACKEND", "cutils:", "");
        let ran = common::run(place.command(&name).env("ATRACE_BACKEND", "none"));
        assert_eq!((ran.stderr.as_str(), ran.said("SINK")), ("", vec!["nowhere: ATRACE_BACKEND=none"]));
    }

    #[test]
    fn an_empty_variable_is_an_unset_one() {
        let name = case!({
            atrace_instant(TAG, "x");
            println!("KIND {}", sink().kind());
            println!("SINK {}", sink());
        });
        let place = Place::file().on();
        for backend in ["", "marker"] {
            assert_eq!(
                common::run(place.command(&name).env("ATRACE_BACKEND", backend)).said("KIND"),
                ["File"]
            );
        }
        let [empty, unset] = [Some(""), None].map(|value| {
            let mut command = place.command(&name);
            command.env_remove("ATRACE_MARKER").envs(value.map(|value| ("ATRACE_MARKER", value)));
            common::run(&mut command).said("SINK").join("\n")
        });
        assert_eq!(empty, unset);
        assert!(!empty.is_empty());
    }

    #[test]
    fn what_could_block_or_signal_is_no_marker() {
        let name = case!({ is_off() });
        let place = Place::file().on();
        let refused = |value: &Path, reason| refused_with(&name, &place, "ATRACE_MARKER", value, reason);
        refused(Path::new("/nonexistent/marker"), "No such file");
        refused(&place.path(""), "is a directory");
        refused(Path::new("fd"), "No such file");
        let pipe = place.path("pipe");
        mkfifo(&pipe);
        refused(&pipe, "is a pipe");
        let _reader = OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
        refused(&pipe, "is a pipe");
        let socket = place.path("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        refused(&socket, "is a socket");
        let (_master, terminal) = terminal();
        refused(&terminal, "is a terminal");
        std::os::unix::fs::symlink(&pipe, place.path("link")).unwrap();
        refused(&place.path("link"), "is a pipe");
        if is_root(&format!("{name}, the block device")) {
            let block = place.path("block");
            mknod(&block, libc::S_IFBLK | 0o600, libc::makedev(7, 250));
            refused(&block, "is a block device");
        }
    }

    #[test]
    fn a_file_is_refused_where_a_size_limit_would_signal() {
        let name = case!({ is_off() });
        let place = Place::file().on();
        let mut command = place.command(&name);
        let ran = common::run(limited(&mut command, libc::RLIMIT_FSIZE, 1 << 20, 1 << 20));
        assert!(ran.stderr.contains("file size limit"), "{}", ran.stderr);
    }

    /// Tests a limit of the size of files, which also applies to the memory file in which the process publishes its
    /// tracing state.
    #[test]
    fn a_size_limit_does_not_keep_events_from_the_kernel() {
        let name = case!({
            for _ in 0..300 {
                atrace_instant(TAG, "x");
            }
            atrace_update_tags();
        });
        let Some(place) = Place::kernel(&name) else { return };
        let place = place.on();
        let mut command = place.command(&name);
        common::run(limited(&mut command, libc::RLIMIT_FSIZE, 0, 0));
        assert_eq!(place.messages().len(), 300);
    }

    /// Makes the child process of `command` inherit the descriptor of `file`, with the same number.
    fn inherit(command: &mut std::process::Command, file: &File) {
        let number = file.as_raw_fd();
        // SAFETY: fcntl may be called between fork and exec. The file stays open here as long as the command is used.
        unsafe {
            command.pre_exec(move || match libc::fcntl(number, libc::F_SETFD, 0) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
    }

    fn with_inherited(name: &str, place: &Place, file: &File, identity: &str) -> common::Ran {
        let mut command = place.command(name);
        inherit(&mut command, file);
        command.env("ATRACE_MARKER", format!("fd:{}:{identity}", file.as_raw_fd()));
        common::run(&mut command)
    }

    #[test]
    fn an_inherited_descriptor_must_be_the_file_it_was_named_for() {
        let name = case!({
            match std::env::var("GOOD") {
                Ok(_) => {
                    atrace_instant(TAG, "one");
                    // The program may close the inherited descriptor and reuse its number, because the library uses a
                    // duplicate with another number.
                    let number: i32 =
                        std::env::var("ATRACE_MARKER").unwrap().split(':').nth(1).unwrap().parse().unwrap();
                    // SAFETY: no other code in this process uses the inherited descriptor.
                    drop(unsafe { OwnedFd::from_raw_fd(number) });
                    let other = tempfile::tempfile().unwrap();
                    // SAFETY: no other code in this process uses `number`. `dup2` is needed because `other` may have
                    // got a lower number.
                    assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
                    atrace_instant(TAG, "two");
                    assert_eq!(other.metadata().unwrap().len(), 0);
                    assert_eq!(sink().to_string(), format!("fd:{number}"));
                    assert_eq!(sink().dropped(), 0);
                }
                Err(_) => is_off(),
            }
        });
        let place = Place::file().on();
        let marker = place.path("marker");
        let file = OpenOptions::new().append(true).open(&marker).unwrap();
        let right = identity(&marker);

        let mut command = place.command(&name);
        inherit(&mut command, &file);
        command.env("GOOD", "1").env("ATRACE_MARKER", format!("fd:{}:{right}", file.as_raw_fd()));
        let pid = common::run(&mut command).pid;
        assert_eq!(place.text(), format!("I|{pid}|oneI|{pid}|two"));
        std::fs::write(&marker, "").unwrap();

        let refused = |ran: common::Ran, reason: &str| {
            assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
            assert!(ran.stderr.contains(reason), "{}", ran.stderr);
            assert_eq!(place.text(), "");
        };
        let other = identity(&place.path(""));
        refused(with_inherited(&name, &place, &file, &other), "its number was reused");
        refused(with_inherited(&name, &place, &File::open(&marker).unwrap(), &right), "not open for writing");
        let path_only = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(&marker).unwrap();
        refused(with_inherited(&name, &place, &path_only, &right), "fd:");
        for (value, reason) in [
            (format!("fd:777:{right}"), "is not open in this process"),
            (format!("fd:-1:{right}"), "is not of the form"),
            (format!("fd:99999999999:{right}"), "is not of the form"),
            (format!("fd:{}", file.as_raw_fd()), "is not of the form"),
            (format!("fd:2:{right}:"), "is not of the form"),
            ("fd:".to_owned(), "is not of the form"),
            ("fd:a:b:c".to_owned(), "is not of the form"),
            ("fd:2:0x1:1".to_owned(), "is not of the form"),
        ] {
            refused_with(&name, &place, "ATRACE_MARKER", value, reason);
        }
        // A pipe is refused even if its identity is correct.
        let pipe = place.path("pipe");
        mkfifo(&pipe);
        let open = OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
        refused(with_inherited(&name, &place, &open, &identity(&pipe)), "is a pipe");
    }

    /// Calls most public functions, and checks that none of them changes errno.
    fn errno_is_kept(state: &str) {
        let mut number = 1000;
        let mut keeps = |what: &str, call: &mut dyn FnMut()| {
            for _ in 0..2 {
                number += 1;
                set_errno(number);
                call();
                assert_eq!(errno(), number, "{what} changed errno ({state})");
            }
        };
        keeps("atrace_init", &mut atrace_init);
        keeps("atrace_is_tag_enabled", &mut || _ = std::hint::black_box(atrace_is_tag_enabled(TAG)));
        keeps("atrace_get_enabled_tags", &mut || _ = std::hint::black_box(atrace_get_enabled_tags()));
        for round in 0..2 {
            keeps("atrace_begin", &mut || atrace_begin(TAG, "a\n"));
            keeps("atrace_begin_fmt", &mut || atrace_begin_args(TAG, format_args!("{}", round), &[]));
            keeps("atrace_begin_args with a closure", &mut || {
                atrace_begin_args(TAG, |name: &mut NameWriter<'_>| name.push_str("1"), &[])
            });
            keeps("atrace_end", &mut || atrace_end(TAG));
            keeps("atrace_async_begin", &mut || atrace_async_begin(TAG, "a", 1));
            keeps("atrace_async_end", &mut || atrace_async_end(TAG, "a", 1));
            keeps("atrace_async_for_track_begin", &mut || atrace_async_for_track_begin(TAG, "a", "a", 1));
            keeps("atrace_async_for_track_end", &mut || atrace_async_for_track_end(TAG, "a", 1));
            keeps("atrace_instant", &mut || atrace_instant(TAG, &"x".repeat(5000)));
            keeps("atrace_instant_for_track", &mut || atrace_instant_for_track(TAG, "t", "a"));
            keeps("atrace_int", &mut || atrace_int(TAG, "a", 1));
            keeps("atrace_int64", &mut || atrace_int64(TAG, "a", 1));
            keeps("begin_scoped_event", &mut || drop(begin_scoped_event(TAG, "a")));
            keeps("trace_method", &mut || {
                trace_method!(TAG);
            });
            keeps("atrace_update_tags", &mut atrace_update_tags);
            keeps("atrace_set_tracing_enabled", &mut || atrace_set_tracing_enabled(false));
            keeps("atrace_instant parked", &mut || atrace_instant(TAG, "x"));
            keeps("atrace_set_tracing_enabled", &mut || atrace_set_tracing_enabled(true));
            keeps("sink", &mut || drop(sink()));
            let mut watch = None;
            keeps("watch", &mut || watch = watch::watch(|_| set_errno(4)).ok());
            keeps("update_tags watched", &mut || {
                atrace_set_tracing_enabled(false);
                atrace_set_tracing_enabled(true);
            });
            keeps("the end of a watch", &mut || watch = None);
            let mut control = control::Control::open().ok();
            keeps("Control::open", &mut || control = control::Control::open().ok());
            if let Some(control) = control {
                let mut switched = None;
                keeps("Control::enable", &mut || switched = control.enable("x").ok());
                keeps("the end of a switch", &mut || switched = None);
                keeps("Control::enable", &mut || drop(control.enable(AtraceTag::Adb)));
                keeps("Control::disable", &mut || drop(control.disable("y")));
                keeps("Control::patterns", &mut || drop(control.patterns()));
                // The flags have changed, so the next event reads the properties.
                keeps("atrace_begin after a switch", &mut || atrace_begin(TAG, "a"));
            }
        }
    }

    #[test]
    fn errno_is_kept_in_every_state() {
        let name = case!({
            errno_is_kept(&std::env::var("STATE").unwrap());
            println!("SINK {}", sink());
        });
        let run = |place: &Place, state: &str, setting: (&str, &Path)| {
            common::run(place.command(&name).env("STATE", state).env(setting.0, setting.1));
        };
        let file = Place::file().on();
        run(&file, "on", ("ATRACE_MARKER", &file.marker()));
        run(&file, "full", ("ATRACE_MARKER", Path::new("/dev/full")));
        run(&file, "none", ("ATRACE_BACKEND", Path::new("none")));
        run(&file, "wrong", ("ATRACE_BACKEND", Path::new("wrong")));
        run(&file, "missing", ("ATRACE_MARKER", Path::new("/nonexistent")));
        run(&file, "bad store", ("ATRACE_PROPERTIES", Path::new("/nonexistent/store")));
        let off = Place::file();
        run(&off, "off", ("ATRACE_MARKER", &off.marker()));
        let Some(kernel) = Place::kernel(&format!("{name}, the kernel's marker")) else { return };
        let kernel = kernel.on();
        run(&kernel, "kernel", ("ATRACE_MARKER", &kernel.marker()));
        kernel.instance().set_tracing_on(false).unwrap();
        run(&kernel, "kernel off", ("ATRACE_MARKER", &kernel.marker()));
    }

    #[test]
    fn a_full_device_drops_events_and_fails_nobody() {
        let name = case!({
            for _ in 0..100 {
                let _event = begin_scoped_event(TAG, "x");
            }
            let sink = sink();
            assert_eq!(sink.kind(), "Device");
            // The ends are not counted: if the begin of a slice was not written, no end is written.
            assert_eq!(sink.dropped(), 100);
        });
        let place = Place::file().on();
        let ran = common::run(place.command(&name).env("ATRACE_MARKER", "/dev/full"));
        assert_eq!(ran.stderr, "");
    }

    /// A mounted file system of a test. Dropping the `Mounted` unmounts it, even if the test fails.
    struct Mounted(std::ffi::CString);

    impl Drop for Mounted {
        fn drop(&mut self) {
            // SAFETY: the path is a C string.
            unsafe { libc::umount2(self.0.as_ptr(), libc::MNT_DETACH) };
        }
    }

    #[test]
    fn a_full_disk_drops_events_and_recovers() {
        let name = case!({
            let full = std::env::var_os("ATRACE_MARKER").unwrap();
            let mut written = 0_u64;
            while sink().dropped() == 0 {
                atrace_instant(TAG, &"x".repeat(900));
                written += 1;
                assert!(written < 10_000);
            }
            for _ in 0..10 {
                atrace_instant(TAG, "small or not");
                let _event = begin_scoped_event(TAG, &"y".repeat(1000));
            }
            let dropped = sink().dropped();
            assert!(dropped > 10, "{dropped}");
            std::fs::OpenOptions::new().write(true).truncate(true).open(full).unwrap();
            atrace_instant(TAG, "room again");
            assert_eq!(sink().dropped(), dropped);
        });
        if !is_root(&name) {
            return;
        }
        let place = Place::file().on();
        let disk = place.path("disk");
        std::fs::create_dir(&disk).unwrap();
        let target = std::ffi::CString::new(disk.to_str().unwrap()).unwrap();
        // SAFETY: the arguments are C strings.
        let mounted = unsafe {
            libc::mount(c"tmpfs".as_ptr(), target.as_ptr(), c"tmpfs".as_ptr(), 0, c"size=32k".as_ptr().cast())
        };
        if mounted != 0 {
            let reason = std::io::Error::last_os_error();
            common::skipped(&name, format_args!("can't mount a small tmpfs: {reason}"));
            return;
        }
        let mounted = Mounted(target);
        let marker = disk.join("marker");
        std::fs::write(&marker, "").unwrap();
        let ran = common::run(place.command(&name).env("ATRACE_MARKER", &marker));
        assert_eq!(std::fs::read_to_string(&marker).unwrap(), format!("I|{}|room again", ran.pid));
        drop(mounted);
    }

    #[test]
    #[cfg_attr(
        all(target_os = "android", not(target_feature = "crt-static")),
        ignore = "the dynamic linker may complain first, and be harmed"
    )]
    fn a_complaint_that_nobody_can_read_harms_nobody() {
        let name = case!({
            // In a C program, SIGPIPE has its default action, which ends the program.
            // SAFETY: no handler is installed, only the default action.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
            set_errno(77);
            atrace_begin(TAG, "x");
            assert_eq!(errno(), 77);
            // SAFETY: the sets are writable, and the calls initialize them.
            unsafe {
                let mut set = std::mem::zeroed();
                libc::sigpending(&mut set);
                assert_eq!(libc::sigismember(&set, libc::SIGPIPE), 0, "a signal was left behind");
                libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut set);
                assert_eq!(libc::sigismember(&set, libc::SIGPIPE), 0, "a signal was left blocked");
            }
            is_off();
        });
        let place = Place::file().on();
        let mut command = place.command(&name);
        command.env("ATRACE_BACKEND", "wrong");

        // In this program, stderr is closed.
        let mut closed = place.command(&name);
        closed.env("ATRACE_BACKEND", "wrong");
        // SAFETY: close may be called between fork and exec.
        unsafe {
            closed.pre_exec(|| {
                libc::close(2);
                Ok(())
            });
        }
        common::run(&mut closed);

        // The stderr of the next programs is a pipe or a socket whose other end is closed, or a full pipe.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        common::run(command.stderr(Stdio::from(OwnedFd::from(writer))));
        let (reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(reader);
        common::run(command.stderr(Stdio::from(OwnedFd::from(writer))));
        let (_reader, mut writer) = std::io::pipe().unwrap();
        // SAFETY: a descriptor of this test.
        unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        while writer.write(&[0; 4096]).is_ok() {}
        // SAFETY: a descriptor of this test.
        unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, 0) };
        common::run(command.stderr(Stdio::from(OwnedFd::from(writer))));
        // A device that is always full.
        common::run(command.stderr(Stdio::from(OpenOptions::new().write(true).open("/dev/full").unwrap())));
        // A terminal: the message can be read there, and has one line.
        let (mut master, terminal) = terminal();
        let mut options = OpenOptions::new();
        let slave = options.read(true).write(true).custom_flags(libc::O_NOCTTY).open(terminal).unwrap();
        common::run(command.stderr(Stdio::from(OwnedFd::from(slave))));
        let mut text = [0; 4096];
        let length = master.read(&mut text).unwrap();
        let text = String::from_utf8_lossy(&text[..length]);
        assert!(text.starts_with("atrace: ATRACE_BACKEND=wrong") && text.lines().count() == 1, "{text:?}");
    }

    /// Closes all descriptors except the standard descriptors, as some programs do at their start, and opens files.
    fn close_and_open(directory: &Path) -> Vec<File> {
        common::close_all();
        (0..20).map(|number| File::create_new(directory.join(format!("own{number}"))).unwrap()).collect()
    }

    fn survives_closing() {
        let directory = tempfile::tempdir().unwrap();
        let marker = std::path::PathBuf::from(std::env::var_os("ATRACE_MARKER").unwrap());
        atrace_instant(TAG, "before");
        let number = descriptor_of(&marker).expect("the marker is open");
        assert!(number >= 200, "{number} would be reused at once");
        let own = close_and_open(directory.path());
        let count = descriptors().len();
        set_errno(5);
        atrace_instant(TAG, "after");
        assert_eq!(errno(), 5);
        atrace_instant(TAG, "again");
        assert_eq!(descriptors().len(), count + 1);
        let number = descriptor_of(&marker).unwrap();
        assert!(number >= 200);
        for file in &own {
            assert_eq!(file.metadata().unwrap().len(), 0, "an event went into a file of the host");
        }
        // Many threads open the closed marker again at the same time, and only one of the new descriptors remains.
        for _ in 0..50 {
            // SAFETY: closes a descriptor of `atrace`, which `atrace` must tolerate in this test.
            unsafe { libc::close(descriptor_of(&marker).unwrap()) };
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| atrace_instant(TAG, "thread"));
                }
            });
            assert_eq!(descriptors().len(), count + 1);
        }
        assert_eq!(sink().dropped(), 0);
    }

    #[test]
    fn a_descriptor_that_the_host_closed_is_opened_again() {
        let name = case!({ survives_closing() });
        let place = Place::file().on();
        let pid = place.run(&name).pid;
        let mut expected = format!("I|{pid}|beforeI|{pid}|afterI|{pid}|again");
        expected += &format!("I|{pid}|thread").repeat(200);
        assert_eq!(place.text(), expected);
    }

    #[test]
    fn a_descriptor_of_the_kernels_marker_is_opened_again() {
        let name = case!({ survives_closing() });
        let Some(place) = Place::kernel(&name) else { return };
        let place = place.on();
        place.run(&name);
        assert_eq!(place.messages().len(), 203);
    }

    /// Tests a marker that was removed, or whose path leads to another file. No message may be written to the other
    /// file.
    #[test]
    fn a_marker_that_was_replaced_is_not_opened_again() {
        let name = case!({
            let marker = std::path::PathBuf::from(std::env::var_os("ATRACE_MARKER").unwrap());
            atrace_instant(TAG, "before");
            let number = descriptor_of(&marker).unwrap();
            std::fs::rename(&marker, marker.with_file_name("old")).unwrap();
            atrace_instant(TAG, "renamed");
            // SAFETY: closes a descriptor of `atrace`, which `atrace` must tolerate in this test.
            unsafe { libc::close(number) };
            let count = descriptors().len();
            atrace_instant(TAG, "missing");
            std::fs::write(&marker, "").unwrap();
            atrace_instant(TAG, "another");
            assert_eq!(sink().dropped(), 2);
            assert_eq!(descriptors().len(), count);
            std::fs::rename(marker.with_file_name("old"), &marker).unwrap();
            atrace_instant(TAG, "back");
            assert_eq!(sink().dropped(), 2);
        });
        let place = Place::file().on();
        let pid = place.run(&name).pid;
        assert_eq!(place.text(), format!("I|{pid}|beforeI|{pid}|renamedI|{pid}|back"));
    }

    #[test]
    fn a_switched_off_ring_buffer_drops_events_and_goes_on() {
        let name = case!({
            let marker = std::path::PathBuf::from(std::env::var_os("ATRACE_MARKER").unwrap());
            let instance = tracefs::Instance::attach(marker.parent().unwrap()).unwrap();
            atrace_instant(TAG, "before");
            let before = descriptors();
            instance.set_tracing_on(false).unwrap();
            for _ in 0..100 {
                set_errno(3);
                atrace_instant(TAG, "off");
                assert_eq!(errno(), 3);
            }
            assert_eq!(sink().dropped(), 100);
            assert_eq!(descriptors(), before, "opened again for nothing");
            instance.set_tracing_on(true).unwrap();
            atrace_instant(TAG, "on");
            // Before Linux 4.4, an instance has no separate option `markers`, so the test switches the whole instance
            // off.
            let has_option = instance.path().join("options/markers").exists();
            let accept = |on| match has_option {
                true => instance.set_option("markers", on).unwrap(),
                false => instance.set_tracing_on(on).unwrap(),
            };
            accept(false);
            for _ in 0..100 {
                atrace_instant(TAG, "no markers");
            }
            assert_eq!(descriptors(), before);
            accept(true);
            atrace_instant(TAG, "markers");
            assert_eq!(sink().dropped(), 200);
            // Tests a marker that is closed while the ring buffer is off: the marker is opened again, and events are
            // written to it once the buffer is on.
            instance.set_tracing_on(false).unwrap();
            // SAFETY: closes a descriptor of `atrace`, which `atrace` must tolerate in this test.
            unsafe { libc::close(descriptor_of(&marker).unwrap()) };
            for _ in 0..10 {
                atrace_instant(TAG, "off");
            }
            assert_eq!(descriptors().len(), before.len());
            instance.set_tracing_on(true).unwrap();
            atrace_instant(TAG, "end");
            assert_eq!(sink().dropped(), 210);
        });
        let Some(place) = Place::kernel(&name) else { return };
        let place = place.on();
        let pid = place.run(&name).pid;
        let expected = ["before", "on", "markers", "end"].map(|name| format!("I|{pid}|{name}"));
        assert_eq!(place.messages(), expected);
    }

    #[test]
    fn programs_that_are_executed_do_not_inherit_the_marker() {
        let name = case!({
            let marker = std::path::PathBuf::from(std::env::var_os("ATRACE_MARKER").unwrap());
            atrace_instant(TAG, "x");
            assert!(descriptor_of(&marker).is_some());
            let output = std::process::Command::new("ls").args(["-l", "/proc/self/fd"]).output().unwrap();
            assert!(output.status.success());
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(!text.contains(marker.to_str().unwrap()), "{text}");
            assert!(!text.contains("properties"), "{text}");
        });
        Place::file().on().run(&name);
    }

    #[test]
    fn descriptors_do_not_leak() {
        let name = case!({
            // Many threads choose the backend at the same time, but only one descriptor of the marker stays open.
            common::free_descriptors();
            let before = descriptors().len();
            let barrier = std::sync::Barrier::new(16);
            std::thread::scope(|scope| {
                for _ in 0..16 {
                    scope.spawn(|| {
                        barrier.wait();
                        atrace_init();
                        atrace_instant(TAG, "x");
                    });
                }
            });
            assert_eq!(descriptors().len(), before + 1);
            for _ in 0..100 {
                let _switched = control().enable("*x").unwrap();
                let _tags = control().enable(AtraceTag::Camera).unwrap();
                atrace_instant(TAG, "x");
                let _watch = watch::watch(|_| ()).unwrap();
            }
            assert_eq!(descriptors().len(), before + 1);
        });
        let place = Place::file().on();
        common::run(&mut common::without_descriptors(&place.command(&name)));
    }

    #[test]
    fn few_descriptors_are_enough() {
        let name = case!({
            atrace_instant(TAG, "low");
            assert_eq!(sink().kind(), "File");
            // Opens files until no descriptor is free. The marker, which is already open, still works.
            let mut all = Vec::new();
            while let Ok(file) = File::open("/dev/null") {
                all.push(file);
            }
            atrace_instant(TAG, "none left");
            drop(all);
            let _switched = control().enable("*").unwrap();
            atrace_instant(TAG, "end");
        });
        let place = Place::file().on();
        let mut command = place.command(&name);
        let pid = common::run(limited(&mut command, libc::RLIMIT_NOFILE, 64, 64)).pid;
        assert_eq!(place.text(), format!("I|{pid}|lowI|{pid}|none leftI|{pid}|end"));
    }

    /// Tests that a program with more rights than its caller ignores its caller's environment.
    #[test]
    fn elevated_rights_ignore_the_environment() {
        let name = case!({
            // SAFETY: no preconditions.
            assert_ne!(unsafe { libc::getauxval(libc::AT_SECURE) }, 0);
            println!("SINK {}", sink());
            // SAFETY: no preconditions.
            let uids = unsafe { (libc::getuid(), libc::geteuid()) };
            println!("UIDS {uids:?}");
        });
        if !is_root(&name) {
            return;
        }
        let place = Place::file();
        let program = place.path("elevated");
        common::copy_program(std::env::current_exe().unwrap(), &program);
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap();
        std::fs::set_permissions(place.path(""), std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = place.command_of(&program, &name);
        command.uid(65534).gid(65534).env("ATRACE_BACKEND", "wrong").current_dir("/");
        let ran = match command.spawn() {
            Ok(child) => common::end_of(child),
            Err(reason) => {
                return common::skipped(&name, format_args!("can't start a set-user-id program: {reason}"));
            }
        };
        if ran.stdout.contains("AT_SECURE")
            || !ran.said("UIDS").contains(&"(65534, 0)") && ran.status.success()
        {
            return common::skipped(&name, "set-user-id has no effect there (nosuid?)");
        }
        assert!(ran.status.success(), "{ran:?}");
        assert_eq!(ran.stderr, "", "it heard ATRACE_BACKEND");
        let sink = ran.said("SINK")[0];
        assert!(!sink.contains(place.marker().to_str().unwrap()), "it heard ATRACE_MARKER: {sink}");
        assert!(!place.properties().exists(), "it heard ATRACE_PROPERTIES");
        assert_eq!(place.text(), "");
    }

    /// Tests that a thread that was cancelled (`pthread_cancel`) does not end inside a function of `atrace`, although
    /// the C library's `write` and `open` are cancellation points.
    #[test]
    #[cfg(target_env = "gnu")]
    fn a_cancelled_thread_ends_at_its_own_cancellation_point() {
        let name = case!({
            use std::sync::atomic::{AtomicBool, Ordering};
            static CANCELLED: AtomicBool = AtomicBool::new(false);
            static DONE: AtomicBool = AtomicBool::new(false);
            static READY: AtomicBool = AtomicBool::new(false);
            extern "C" fn body(_: *mut libc::c_void) -> *mut libc::c_void {
                READY.store(true, Ordering::SeqCst);
                while !CANCELLED.load(Ordering::SeqCst) {
                    std::hint::spin_loop();
                }
                // From here on, the thread has a pending request for its cancellation.
                atrace_instant(TAG, "first"); // The first event chooses the backend.
                for _ in 0..10 {
                    atrace_instant(TAG, "event");
                    atrace_update_tags();
                    atrace_set_tracing_enabled(true);
                    let _event = begin_scoped_event(TAG, "scope");
                }
                // SAFETY: closes `atrace`'s descriptor of the marker, so that the next event must open the marker
                // again. The system call is made directly, because libc's `close` is a cancellation point.
                unsafe {
                    let is_open = |number: &i32| libc::fcntl(*number, libc::F_GETFD) >= 0;
                    libc::syscall(libc::SYS_close, (0..4096).rev().find(is_open).unwrap());
                };
                atrace_instant(TAG, "last");
                DONE.store(true, Ordering::SeqCst);
                std::ptr::null_mut()
            }
            // SAFETY: the thread runs a function that never unwinds, because it has no cancellation point outside of
            // atrace.
            unsafe {
                let mut thread = std::mem::zeroed();
                assert_eq!(
                    libc::pthread_create(&mut thread, std::ptr::null(), body, std::ptr::null_mut()),
                    0
                );
                while !READY.load(Ordering::SeqCst) {
                    std::hint::spin_loop();
                }
                assert_eq!(libc::pthread_cancel(thread), 0);
                CANCELLED.store(true, Ordering::SeqCst);
                libc::pthread_join(thread, std::ptr::null_mut());
            }
            assert!(DONE.load(Ordering::SeqCst), "the thread ended within atrace");
        });
        let place = Place::file().on();
        let pid = place.run(&name).pid;
        assert!(place.text().ends_with(&format!("I|{pid}|last")), "{}", place.text());
    }

    fn mkfifo(path: &Path) {
        mknod(path, libc::S_IFIFO | 0o600, 0);
    }

    fn mknod(path: &Path, mode: libc::mode_t, device: libc::dev_t) {
        let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the path is a C string.
        let made = unsafe { libc::mknod(path.as_ptr(), mode, device) };
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
    }
}
