//! Tests a shared library (*plugin*) that traces, in a program that loads and unloads it. The library keeps itself
//! loaded. Otherwise the code of its threads, fork handlers and destructors of thread keys would be unmapped before it
//! runs.
#![cfg(all(target_os = "linux", not(target_feature = "crt-static")))]

mod common;
#[allow(dead_code, unreachable_pub, reason = "this module is shared with the tests in `crates/real-service`")]
#[path = "../../crates/real-service/src/trace.rs"]
mod trace;

#[allow(unsafe_code, reason = "the library is loaded and called as a C program would")]
mod cases {
    use std::ffi::{CStr, CString};
    use std::fs::File;
    use std::os::unix::ffi::OsStringExt as _;
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc;

    use atrace::{AtraceTag, begin_scoped_event};
    use atrace_cli::service::{Service, Storage};

    use crate::common::{self, Place, case};
    use crate::trace::Trace;

    const ROUNDS: usize = 100;

    /// A handle of the shared library. Each `Plugin` comes from a separate `dlopen`.
    struct Plugin(*mut libc::c_void);

    impl Plugin {
        fn load() -> Self {
            let tests = std::env::current_exe().unwrap();
            let path = CString::new(tests.with_file_name("libatrace_plugin.so").into_os_string().into_vec())
                .unwrap();
            // SAFETY: a library of this workspace.
            let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            assert!(!library.is_null(), "{path:?}");
            Self(library)
        }

        fn function(&self, name: &CStr) -> extern "C" fn() {
            // SAFETY: the library has functions with these names and this type. If a function has a result, the caller
            // may ignore it.
            unsafe {
                let function = libc::dlsym(self.0, name.as_ptr());
                assert!(!function.is_null());
                std::mem::transmute::<*mut libc::c_void, extern "C" fn()>(function)
            }
        }

        fn unload(self) {
            // SAFETY: the handle is valid, and no code uses it after this call.
            assert_eq!(unsafe { libc::dlclose(self.0) }, 0);
        }
    }

    /// Loads the library, calls its function `prepare`, writes an event on each of two threads, and unloads the
    /// library. Repeats this many times. The second thread ends only after the library was unloaded and a child was
    /// forked.
    fn load_and_unload(prepare: Option<&CStr>) {
        for _ in 0..ROUNDS {
            let plugin = Plugin::load();
            if let Some(prepare) = prepare {
                plugin.function(prepare)();
            }
            let event = plugin.function(c"plugin_event");
            event();
            let (written, is_written) = mpsc::channel();
            let (end, may_end) = mpsc::channel::<()>();
            let thread = std::thread::spawn(move || {
                event();
                written.send(()).unwrap();
                let _ = may_end.recv();
            });
            is_written.recv().unwrap();
            plugin.unload();
            let child = common::fork();
            if child == 0 {
                // SAFETY: no preconditions; ends the child.
                unsafe { libc::_exit(0) };
            }
            let mut status = 0;
            // SAFETY: `status` is writable.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(status, 0);
            drop(end);
            thread.join().unwrap();
        }
    }

    /// Runs the test case while a Perfetto service records it. Returns the number of events in the trace and the number
    /// of lost events.
    fn recorded(case: &str) -> (u64, u64) {
        let place = Place::file();
        let socket = place.path("socket");
        let keep = Storage::File { file: File::create(place.path("trace")).unwrap(), max: None };
        // SAFETY: no preconditions.
        let user = unsafe { libc::geteuid() };
        let service = Service::start(UnixListener::bind(&socket).unwrap(), user, keep).unwrap();
        let mut command = place.command(case);
        command.env("PERFETTO_PRODUCER_SOCK_NAME", &socket).env("ATRACE_BACKEND", "perfetto");
        common::run(&mut command);
        let report = service.finish();
        (report.counts.events, report.lost.iter().map(atrace_cli::service::Lost::events).sum())
    }

    /// Begins and ends a slice on the calling thread with the program's own copy of `atrace`. Within the slice, writes
    /// an event with the copy in the plugin.
    fn write_by_both(event: extern "C" fn()) {
        let _outer = begin_scoped_event(AtraceTag::App, "outer");
        // Each copy has its own clock. The pause is much longer than the difference of the two clocks.
        let pause = std::time::Duration::from_millis(2);
        std::thread::sleep(pause);
        event();
        std::thread::sleep(pause);
    }

    /// Tests that in Perfetto a process has one track and each thread has one track, no matter how many copies of the
    /// library write events, and even in a forked child.
    #[test]
    fn the_program_and_the_plugin_write_to_the_same_tracks() {
        let name = case!({
            let plugin = Plugin::load();
            let event = plugin.function(c"plugin_event");
            write_by_both(event);
            std::thread::spawn(move || write_by_both(event)).join().unwrap();
            let child = common::fork();
            if child == 0 {
                // SAFETY: no preconditions; the signal ends a child that hangs.
                unsafe { libc::alarm(60) };
                write_by_both(event);
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(0) };
            }
            let mut status = 0;
            // SAFETY: `status` is writable.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(status, 0);
            println!("CHILD {child}");
            write_by_both(event);
        });
        let place = Place::file();
        let socket = place.path("socket");
        let keep = Storage::File { file: File::create(place.path("trace")).unwrap(), max: None };
        let listener = UnixListener::bind(&socket).unwrap();
        let service = Service::start(listener, atrace_sys::process::user(), keep).unwrap();
        let mut command = place.command(&name);
        command.env("PERFETTO_PRODUCER_SOCK_NAME", &socket).env("ATRACE_BACKEND", "perfetto");
        let ran = common::run(&mut command);
        let report = service.finish();
        assert_eq!(report.counts.producers, 4, "two copies in two processes: {report:?}");

        let trace = Trace::open(&place.path("trace"));
        let (parent, child) = (u64::from(ran.pid), ran.said("CHILD")[0].parse().unwrap());
        for (pid, threads) in [(parent, 2), (child, 1)] {
            let (processes, tracks) = trace.tracks_of(pid);
            assert_eq!((processes.len(), tracks.len()), (1, threads), "{processes:x?} {tracks:x?}");
            let process = processes.into_iter().next().unwrap();
            assert!(tracks.iter().all(|(track, thread)| *track == process ^ thread), "{tracks:x?}");
        }
        // The calls of `write_by_both` don't overlap. So in the order of time, each plugin's event is between the begin
        // and the end of its slice.
        let mut events = trace.events();
        events.sort_by_key(|event| event.time);
        let order: Vec<_> = events.iter().map(|event| (event.pid, event.name())).collect();
        let round = |pid| ["outer", "plugin", "end"].map(|name| (pid, name.to_owned()));
        assert_eq!(order, [parent, parent, child, parent].map(round).concat());
    }

    #[test]
    fn it_can_be_unloaded_after_an_event_has_connected() {
        let name = case!({
            load_and_unload(None);
        });
        assert_eq!(recorded(&name), (2 * ROUNDS as u64, 0));
    }

    #[test]
    fn it_can_be_unloaded_after_it_has_connected() {
        let name = case!({
            load_and_unload(Some(c"plugin_connect"));
        });
        assert_eq!(recorded(&name), (2 * ROUNDS as u64, 0));
    }

    #[test]
    fn it_can_be_unloaded_without_a_service() {
        let name = case!({
            load_and_unload(Some(c"plugin_connect"));
        });
        let place = Place::file();
        let mut command = place.command(&name);
        command.env("PERFETTO_PRODUCER_SOCK_NAME", place.path("socket")).env("ATRACE_BACKEND", "perfetto");
        common::run(&mut command);
    }

    #[test]
    fn it_can_be_unloaded_with_a_watch() {
        let name = case!({
            load_and_unload(Some(c"plugin_watch"));
        });
        let place = Place::file().on();
        place.run(&name);
        assert_eq!(place.text().matches("|plugin").count(), 2 * ROUNDS);
    }

    #[test]
    fn it_can_be_unloaded_by_the_marker() {
        let name = case!({
            load_and_unload(None);
            // This test's own copy of `atrace` has one descriptor of the marker, and the plugin's copy has another one.
            let markers = common::descriptors().into_iter().filter(|(_, path)| path.ends_with("marker"));
            assert_eq!(markers.count(), 2);
        });
        let place = Place::file().on();
        place.run(&name);
        assert_eq!(place.text().matches("|plugin").count(), 2 * ROUNDS);
    }
}
