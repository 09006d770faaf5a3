//! Tests that no event calls the allocator, or a function of the C library for locks, dynamic linking, the environment
//! or threads. Tests every kind of event, in every state, with every backend.
//!
//! A preloaded library (`traps/traps.c`) counts the calls of these functions, if the calling thread has switched the
//! counting on. (The real libcutils and libandroid may call such functions; their replacements in this test do not.)
#![cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]

mod common;
#[allow(unreachable_pub, reason = "a module of several test programs")]
mod standins;

#[allow(unsafe_code, reason = "children are forked, and descriptors closed, as a C program would")]
mod cases {
    use std::fs::File;
    use std::os::unix::net::UnixListener;
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::sync::OnceLock;
    use std::time::Duration;

    use atrace::tracer::{GateCheck, PreparedTag};
    use atrace::*;
    use atrace_cli::service::{Service, Storage};

    use crate::common::{self, Place, case, control};
    use crate::standins;

    const TAG: AtraceTag = AtraceTag::App;
    static NAME: Name = Name::new("a name");

    /// Every kind of event, with its name. A function that begins a slice also ends it.
    const KINDS: &[(&str, fn())] = &[
        ("is it on", || {
            atrace_is_tag_enabled(TAG);
        }),
        ("begin, end", || {
            atrace_begin(TAG, "slice");
            atrace_end(TAG);
        }),
        ("end alone", || atrace_end(TAG)),
        ("long begin, end", || {
            atrace_begin(TAG, str::from_utf8(&[b'x'; 1500]).unwrap());
            atrace_end(TAG);
        }),
        ("begin_fmt", || {
            atrace_begin_args(TAG, format_args!("slice {} {:?}", 7, "text"), &[]);
            atrace_end(TAG);
        }),
        ("begin_with", || {
            atrace_begin_args(TAG, |name: &mut NameWriter<'_>| name.push_str("piece"), &[]);
            atrace_end(TAG);
        }),
        ("scoped", || drop(begin_scoped_event(TAG, "slice"))),
        ("scoped_fmt", || drop(begin_scoped_event_args(TAG, format_args!("slice {}", 7), &[]))),
        ("scoped_args", || {
            drop(begin_scoped_event_args(TAG, "slice", &[Arg::Int("number", 7), Arg::Str("text", "text")]));
        }),
        ("trace_method", || {
            trace_method!(TAG);
        }),
        ("slice", || {
            let enabled = PreparedTag::new(TAG).check().and_then(GateCheck::enabled);
            let slice = enabled.and_then(|enabled| enabled.begin("slice"));
            slice.into_iter().for_each(|slice| slice.end(None));
        }),
        ("begin_args", || {
            atrace_begin_args(TAG, &NAME, &[Arg::Float("real", 1.5)]);
            atrace_end(TAG);
        }),
        ("instant", || atrace_instant(TAG, "moment")),
        ("instant_fmt", || atrace_instant_args(TAG, format_args!("moment {}", 7), &[])),
        ("instant_args", || atrace_instant_args(TAG, "moment", &[Arg::Str("text", "text")])),
        ("instant_for_track", || atrace_instant_for_track(TAG, "row", "moment")),
        ("async", || {
            atrace_async_begin(TAG, "task", 7);
            atrace_async_end(TAG, "task", 7);
        }),
        ("async_for_track", || {
            atrace_async_for_track_begin(TAG, "row", "task", 7);
            atrace_async_for_track_end(TAG, "row", 7);
        }),
        ("async_for_track_args", || {
            atrace_async_for_track_begin_args(TAG, "row", "task", 8, &[Arg::Int("number", 7)]);
            atrace_async_for_track_end(TAG, "row", 8);
        }),
        ("int", || atrace_int(TAG, "counter", 7)),
        ("int64", || atrace_int64(TAG, "counter", 7)),
        ("int64_name", || atrace_counter(TAG, &NAME, 7)),
        ("f64", || atrace_f64(TAG, "counter", 1.5)),
    ];

    /// The name of a situation in which an event is tested, and a function that makes this situation and calls the
    /// event.
    type State = (&'static str, fn(fn()));
    const STATES: &[State] = &[
        ("the first of the process", |event| trapped(event)),
        ("another one", |event| {
            event();
            trapped(event);
        }),
        ("many", |event| {
            event();
            // So many events fill several chunks of memory, and make the library check the marker's descriptor.
            trapped_times(event, 300);
        }),
        ("the first of a thread", |event| {
            event();
            std::thread::spawn(move || trapped(event)).join().unwrap();
        }),
        ("the first after a fork", |event| {
            event();
            in_child(|| trapped(event));
        }),
        ("the first of a child's thread", |event| {
            event();
            in_child(|| std::thread::spawn(move || trapped(event)).join().unwrap());
        }),
        ("after a switch", |event| {
            event();
            let switched = with_descriptors(|| control().enable("*").unwrap());
            trapped(event);
            with_descriptors(|| drop(switched));
            trapped(event);
        }),
        ("after a switch, in a damaged store", |event| {
            event();
            // The event searches for patterns whose properties do not exist.
            let control = with_descriptors(control);
            let set = |key, value: &str| with_descriptors(|| control.properties().set(key, value).unwrap());
            let before = ["debug.atrace.app_number", "debug.atrace.app_0", "debug.atrace.tags.enableflags"]
                .map(|key| (key, control.properties().get(key).unwrap()));
            for ((key, _), value) in before.iter().zip(["3", "no program", "0"]) {
                set(key, value);
            }
            in_a_damaged_store(|| trapped(event));
            for (key, value) in before {
                set(key, &value.unwrap_or_default().to_string_lossy());
            }
        }),
        ("after a switch, in a program with a locale", |event| {
            event();
            // SAFETY: no other thread uses the locale.
            let name = with_descriptors(|| unsafe { libc::setlocale(libc::LC_ALL, c"C.UTF-8".as_ptr()) });
            assert!(!name.is_null());
            let switched = with_descriptors(|| control().enable("*").unwrap());
            trapped(event);
            with_descriptors(|| drop(switched));
            trapped(event);
        }),
        ("the marker closed", |event| {
            event();
            close_marker();
            trapped_times(event, 300);
        }),
        ("the marker closed and gone", |event| {
            event();
            close_marker();
            let _ = std::fs::rename(marker(), marker().with_extension("gone"));
            trapped_times(event, 300);
            let _ = std::fs::rename(marker().with_extension("gone"), marker());
        }),
        ("no memory to be had", |event| {
            event();
            without_memory();
            trapped_times(event, 300);
        }),
        ("no memory at first", |event| {
            without_memory();
            trapped_times(event, 300);
        }),
    ];

    fn marker() -> PathBuf {
        std::env::var_os("ATRACE_MARKER").unwrap().into()
    }

    /// Calls `body` with the highest possible limit of descriptors, so that `body` can open files even in a test in
    /// which events must not find a free descriptor.
    fn with_descriptors<T>(body: impl FnOnce() -> T) -> T {
        let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limits` is writable.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limits) }, 0);
        let allow = |soft| common::limit(libc::RLIMIT_NOFILE, soft, limits.rlim_max).unwrap();
        allow(limits.rlim_max);
        let returned = body();
        allow(limits.rlim_cur);
        returned
    }

    /// Calls `body` while the header of the property store contains a number of entries that is greater than the
    /// store's capacity.
    fn in_a_damaged_store(body: impl FnOnce()) {
        use std::os::unix::fs::FileExt as _;
        const COUNT: u64 = 12; // The offset of the number of entries: see `layout.rs` of the crate `atrace-sys`.
        let path = std::env::var_os("ATRACE_PROPERTIES").unwrap();
        let store = with_descriptors(|| File::options().read(true).write(true).open(path).unwrap());
        let mut count = [0; 4];
        store.read_exact_at(&mut count, COUNT).unwrap();
        store.write_all_at(&u32::MAX.to_ne_bytes(), COUNT).unwrap();
        body();
        store.write_all_at(&count, COUNT).unwrap();
    }

    fn close_marker() {
        for (number, path) in common::descriptors() {
            if number > 2 && path == marker() {
                // SAFETY: closes the library's descriptor, which the library must tolerate in this test.
                unsafe { libc::close(number) };
            }
        }
    }

    /// Makes the system refuse further memory mappings.
    fn without_memory() {
        let status = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = status.split(' ').next().unwrap().parse().unwrap();
        common::limit(libc::RLIMIT_AS, pages * atrace_sys::memory::page_size() as u64, libc::RLIM_INFINITY)
            .unwrap();
    }

    type Traps = (extern "C" fn(), extern "C" fn() -> i32);

    fn traps() -> Traps {
        static TRAPS: OnceLock<Traps> = OnceLock::new();
        *TRAPS.get_or_init(|| {
            // SAFETY: the functions have these types in the preloaded library.
            unsafe {
                let arm = libc::dlsym(libc::RTLD_DEFAULT, c"traps_arm".as_ptr());
                let disarm = libc::dlsym(libc::RTLD_DEFAULT, c"traps_disarm".as_ptr());
                assert!(!arm.is_null() && !disarm.is_null(), "without the library this tests nothing");
                (
                    std::mem::transmute::<*mut libc::c_void, extern "C" fn()>(arm),
                    std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> i32>(disarm),
                )
            }
        })
    }

    fn trapped(event: fn()) {
        trapped_times(event, 1);
    }

    /// Writes the event this many times. Ends the process with status 3 if the event calls a forbidden function.
    fn trapped_times(event: fn(), times: u32) {
        let (arm, disarm) = traps();
        arm();
        for _ in 0..times {
            event();
        }
        if disarm() > 0 {
            // SAFETY: no preconditions; ends the process.
            unsafe { libc::_exit(3) };
        }
    }

    /// Runs `body` in a child. If the child fails, ends this process with status 3.
    fn in_child(body: impl FnOnce()) {
        // SAFETY: the child ends without returning from here.
        unsafe {
            let child = common::fork();
            if child == 0 {
                body();
                libc::_exit(0);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            if status != 0 {
                libc::_exit(3);
            }
        }
    }

    /// Tests every kind of event in every state, or in the state that the variable `STATE` names. Each test runs in a
    /// child of this process, which itself writes no event. `before` is called first in the child.
    fn all(before: fn()) {
        traps();
        let mut faults = Vec::new();
        let only = std::env::var("STATE").ok();
        assert!(only.as_deref().is_none_or(|only| STATES.iter().any(|it| it.0 == only)), "{only:?}");
        for (state, run) in STATES.iter().filter(|it| only.as_ref().is_none_or(|only| only == it.0)) {
            for (kind, event) in KINDS {
                // SAFETY: the child ends without returning from here.
                unsafe {
                    let child = common::fork();
                    if child == 0 {
                        before();
                        run(*event);
                        libc::_exit(0);
                    }
                    let mut status = 0;
                    assert_eq!(libc::waitpid(child, &mut status, 0), child);
                    if status != 0 {
                        faults.push(format!("{state}: {kind}: {status:#x}"));
                    }
                }
            }
        }
        assert!(
            faults.is_empty(),
            "{} of {}:\n{}",
            faults.len(),
            STATES.len() * KINDS.len(),
            faults.join("\n")
        );
    }

    /// Builds the library that counts calls (`traps/traps.c`), in the directory of this test.
    fn library(place: &Place) -> PathBuf {
        let built = place.path("traps.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traps/traps.c");
        let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        compiler
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"])
            .arg(source)
            .arg("-o")
            .arg(&built);
        let status = compiler.arg("-ldl").status().unwrap_or_else(|reason| panic!("{compiler:?}: {reason}"));
        assert!(status.success(), "{compiler:?}: {status}");
        built
    }

    fn trapping(place: &Place, name: &str) -> Command {
        let mut command = place.command(name);
        command.env("LD_PRELOAD", library(place));
        command
    }

    /// Tests that the preloaded library really counts calls. If it did not, the other tests would always pass.
    #[test]
    fn the_traps_trap() {
        let name = case!({
            let (arm, disarm) = traps();
            let count = |body: fn()| {
                arm();
                body();
                disarm()
            };
            let lock = || drop(std::hint::black_box(std::env::var_os("HOME")));
            assert!(count(lock) > 0);
            assert_eq!(count(|| drop(std::hint::black_box(Box::new(7)))), 2);
            // SAFETY: every program has the symbol `malloc`.
            let link = || unsafe { assert!(!libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()).is_null()) };
            assert_eq!(count(link), 1);
            assert!(count(|| std::thread::spawn(|| ()).join().unwrap()) > 0);
            assert_eq!(count(|| ()), 0);
        });
        let place = Place::file();
        common::run(&mut trapping(&place, &name));
    }

    #[test]
    fn by_the_marker() {
        let name = case!({ all(|| ()) });
        let place = Place::file().on();
        common::run(&mut trapping(&place, &name));
        assert!(place.text().matches("|slice").count() > STATES.len());
    }

    #[test]
    fn by_the_marker_of_an_old_kernel() {
        let name = case!({
            common::with_an_old_kernel();
            all(|| ());
        });
        let place = Place::file().on();
        common::run(trapping(&place, &name).env("STATE", "the first of the process"));
    }

    #[test]
    fn while_off() {
        let name = case!({ all(|| ()) });
        common::run(&mut trapping(&Place::file(), &name));
        common::run(trapping(&Place::file(), &name).env("ATRACE_BACKEND", "none"));
    }

    #[test]
    fn without_a_descriptor() {
        let name = case!({ all(|| ()) });
        let place = Place::file().on();
        common::run(&mut common::without_descriptors(&trapping(&place, &name)));
    }

    #[test]
    fn by_libraries_of_androids() {
        let name = case!({ all(|| ()) });
        let place = Place::file().on();
        for (backend, library, level) in [("cutils", "libcutils", 34), ("ndk", "libandroid", 29)] {
            let library = standins::build(library, level, place.path("").as_path());
            let backend = format!("{backend}:{}", library.display());
            let mut command = trapping(&place, &name);
            let ran =
                common::run(command.env("ATRACE_BACKEND", backend).env("STANDIN_ENABLED", place.path("")));
            let calls = ran.said("CALL").into_iter().filter(|call| *call != "update_tags").count();
            assert!(calls > STATES.len() * KINDS.len(), "{calls} calls");
        }
    }

    /// Tests events in child processes that record themselves (`perfetto::record_to`).
    #[test]
    fn by_a_recording() {
        let name = case!({
            all(|| {
                std::mem::forget(perfetto::record_to("/dev/null").unwrap());
                assert!(atrace_is_tag_enabled(TAG));
            });
        });
        common::run(&mut trapping(&Place::file(), &name));
    }

    fn serve(place: &Place) -> Service {
        let keep = Storage::File { file: File::create(place.path("trace")).unwrap(), max: None };
        // SAFETY: no preconditions.
        let user = unsafe { libc::geteuid() };
        Service::start(UnixListener::bind(place.path("socket")).unwrap(), user, keep).unwrap()
    }

    /// Tests events in child processes that connect to a Perfetto service with their first event.
    #[test]
    fn by_a_service() {
        let name = case!({ all(|| ()) });
        let place = Place::file();
        let service = serve(&place);
        let mut command = trapping(&place, &name);
        command.env("ATRACE_BACKEND", "perfetto").env("PERFETTO_PRODUCER_SOCK_NAME", place.path("socket"));
        common::run(&mut command);
        assert!(service.finish().counts.events > 0);
    }

    /// Tests events in child processes that find no Perfetto service.
    #[test]
    fn without_a_service() {
        let name = case!({
            // Events in signal handlers do not wait for a service. The call of `connect` has the effect that here no
            // event waits.
            all(|| {
                perfetto::connect();
            });
        });
        let place = Place::file();
        let mut command = trapping(&place, &name);
        common::run(command.env("PERFETTO_PRODUCER_SOCK_NAME", place.path("socket")));
    }

    /// Tests events in child processes that are connected to a service that never answers. Each child waits for the
    /// answer before its events, so the states are tested at the same time, in different processes.
    #[test]
    fn with_a_service_that_never_answers() {
        let name = case!({
            all(|| {
                perfetto::connect();
            });
        });
        let place = Place::file();
        let socket = place.path("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                // Reads the child's requests until the child ends.
                std::thread::spawn(move || std::io::copy(&mut stream.unwrap(), &mut std::io::sink()));
            }
        });
        let (name, socket) = (&name, &socket);
        std::thread::scope(|scope| {
            for (state, _) in STATES {
                scope.spawn(move || {
                    let place = Place::file();
                    let mut command = trapping(&place, name);
                    common::run(command.env("STATE", state).env("PERFETTO_PRODUCER_SOCK_NAME", socket));
                });
            }
        });
    }

    /// Tests events that are written while sessions begin and end.
    #[test]
    fn while_sessions_come_and_go() {
        let name = case!({
            traps();
            perfetto::connect();
            let start = std::time::Instant::now();
            let mut is_recorded = false;
            while start.elapsed() < Duration::from_secs(600) && !marker().with_extension("over").exists() {
                if !is_recorded && perfetto::status().sessions() > 0 {
                    is_recorded = true;
                    std::fs::write(marker().with_extension("recorded"), "").unwrap();
                }
                KINDS.iter().for_each(|(_, event)| trapped(*event));
            }
            assert!(is_recorded, "no session came");
        });
        let place = Place::file();
        let socket = place.path("socket");
        let child = trapping(&place, &name).env("PERFETTO_PRODUCER_SOCK_NAME", &socket).spawn().unwrap();
        for round in 0..6 {
            let service = serve(&place);
            if round == 0 {
                common::until("a session came", || place.marker().with_extension("recorded").exists());
            }
            std::thread::sleep(Duration::from_millis(300));
            service.finish();
            std::fs::remove_file(&socket).unwrap();
        }
        std::fs::write(place.marker().with_extension("over"), "").unwrap();
        let ran = common::end_of(child);
        assert!(ran.status.success(), "{ran:?}");
    }
}
