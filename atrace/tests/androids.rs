//! Tests events that are written through libcutils or libandroid, for each Android version. Small stand-ins replace
//! these libraries.
//!
//! As on Android, the property `ro.build.version.sdk` contains the API level.
#![cfg(target_os = "linux")]

mod common;
#[allow(unreachable_pub, reason = "the library's own tests use it, too")]
mod standins;

mod cases {
    use std::path::Path;

    use atrace::*;

    use crate::common::{self, Place, case};
    use crate::standins;

    const TAG: AtraceTag = AtraceTag::App;

    fn every_kind() {
        atrace_begin(TAG, "b");
        atrace_end(TAG);
        atrace_async_begin(TAG, "s", 1);
        atrace_async_end(TAG, "s", 1);
        atrace_async_for_track_begin(TAG, "row", "g", -2);
        atrace_async_for_track_end(TAG, "row", -2);
        atrace_instant(TAG, "i");
        atrace_instant_for_track(TAG, "row", "n");
        atrace_int(TAG, "c", 3);
        atrace_int64(TAG, "c", i64::MIN);
        println!("SINK {}", sink());
    }

    /// Runs the test case with this library. Returns the calls that the library received, and the text that was written
    /// to the marker.
    fn through(
        name: &str,
        backend: &str,
        library: &Path,
        api_level: Option<u32>,
        enabled: &Path,
    ) -> (Vec<String>, String) {
        let place = Place::file().on();
        if let Some(level) = api_level {
            place.set("ro.build.version.sdk", &level.to_string());
        }
        let ran = common::run(
            place
                .command(name)
                .env("ATRACE_BACKEND", format!("{backend}:{}", library.display()))
                .env("STANDIN_ENABLED", enabled),
        );
        assert_eq!(ran.stderr, "");
        let calls = ran.said("CALL").into_iter().filter(|call| *call != "update_tags");
        (calls.map(str::to_owned).collect(), place.text().replace(&ran.pid.to_string(), "PID"))
    }

    #[test]
    fn what_an_old_libcutils_lacks_is_written_in_its_place() {
        let name = case!({ every_kind() });
        let directory = tempfile::tempdir().unwrap();
        let old = ["B|b", "E", "S|s|1", "F|s|1", "C|c|3", "C|c|-9223372036854775808"];
        let no_end: Vec<_> = old.iter().copied().filter(|call| *call != "E").collect();
        let tracks = "G|PID|row|g|-2H|PID|row|-2I|PID|iN|PID|row|n";
        for (level, expected, beside) in
            [(23, &no_end[..], format!("E|PID{tracks}")), (32, &old[..], tracks.to_owned())]
        {
            let library = standins::build("libcutils", level, directory.path());
            assert_eq!(
                through(&name, "cutils", &library, Some(level), directory.path()),
                (expected.iter().map(ToString::to_string).collect(), beside),
                "API level {level}"
            );
        }
    }

    /// Tests both signatures of `atrace_async_for_track_end_body`, which takes a name in Android 13 and no name in
    /// later versions. Only the API level shows which signature the library has.
    #[test]
    fn an_end_on_a_track_is_the_same_in_every_libcutils() {
        let name = case!({ every_kind() });
        let directory = tempfile::tempdir().unwrap();
        let all = [
            "B|b",
            "E",
            "S|s|1",
            "F|s|1",
            "G|row|g|-2",
            "H|row|-2",
            "I|i",
            "N|row|n",
            "C|c|3",
            "C|c|-9223372036854775808",
        ];
        for (level, told) in [(33, Some(33)), (34, Some(34)), (36, Some(36)), (36, None)] {
            let library = standins::build("libcutils", level, directory.path());
            assert_eq!(
                through(&name, "cutils", &library, told, directory.path()),
                (all.map(str::to_owned).to_vec(), String::new()),
                "the library of {level}, told {told:?}"
            );
        }
    }

    /// Tests a library that has the function `atrace_async_for_track_end_body` although the API level is lower than 33,
    /// with which the function was added. The function's parameters are then unknown, so it is not called, and the
    /// marker gets the event.
    #[test]
    fn an_end_on_a_track_of_unknown_form_is_written_in_its_place() {
        let name = case!({
            atrace_async_for_track_end(TAG, "row", 7);
        });
        let directory = tempfile::tempdir().unwrap();
        let library = standins::build("libcutils", 33, directory.path());
        let (calls, beside) = through(&name, "cutils", &library, Some(32), directory.path());
        assert_eq!((calls, beside.as_str()), (vec![], "H|PID|row|7"));
    }

    /// Tests that the API level of a VNDK library (a system library for vendor programs) is the number in the name of
    /// the library's directory, whatever the device's API level is.
    #[test]
    fn a_vendors_libcutils_has_a_level_of_its_own() {
        let name = case!({
            atrace_async_for_track_end(TAG, "row", 7);
        });
        let directory = tempfile::tempdir().unwrap();
        let apex = directory.path().join("apex/com.android.vndk.v33/lib64");
        std::fs::create_dir_all(&apex).unwrap();
        let library = standins::build("libcutils", 33, &apex);
        let (calls, beside) = through(&name, "cutils", &library, Some(35), directory.path());
        assert_eq!((calls, beside.as_str()), (vec!["H|row|7".to_owned()], ""));
    }

    #[test]
    fn libandroid_gets_the_nearest_it_has() {
        let name = case!({ every_kind() });
        let directory = tempfile::tempdir().unwrap();
        let slices = ["begin b", "end"];
        let instants = ["begin i", "end", "begin n", "end"];
        let asyncs = ["async begin s 1", "async end s 1", "async begin row -2", "async end row -2"];
        let counters = ["counter c 3", "counter c -9223372036854775808"];
        let new = [&slices[..], &asyncs, &instants, &counters].concat();
        for (level, expected) in [(23, [&slices[..], &instants].concat()), (29, new)] {
            let library = standins::build("libandroid", level, directory.path());
            let (calls, beside) = through(&name, "ndk", &library, Some(level), directory.path());
            assert_eq!((calls, beside.as_str()), (expected.iter().map(ToString::to_string).collect(), ""));
        }
    }

    /// Asks libandroid several times over 24 ms, until its answer is settled: the library has given the same answer
    /// twice, more than ten milliseconds apart.
    fn settle() {
        for _ in 0..2 {
            let _ = atrace_get_enabled_tags();
            std::thread::sleep(std::time::Duration::from_millis(12));
        }
        let _ = atrace_get_enabled_tags();
    }

    /// Tests that no thread caches old tags. libandroid asks libcutils. In libcutils, the first thread that sees a new
    /// serial stores this serial before it reads the properties. Until it has read them, all other threads get the old
    /// tags.
    #[test]
    fn libandroid_is_asked_until_it_is_sure() {
        let name = case!({
            let enabled = std::env::var_os("STANDIN_ENABLED").unwrap();
            for round in 0..5 {
                settle();
                assert_eq!(atrace_get_enabled_tags(), AtraceTag::empty());
                std::fs::write(&enabled, "").unwrap();
                let switched = common::control().enable("*").unwrap();
                atrace_int(TAG, "too early", round);
                common::until("it says that it is on", || atrace_is_tag_enabled(TAG));
                settle();
                atrace_int(TAG, "on", round);
                std::fs::remove_file(&enabled).unwrap();
                drop(switched);
                common::until("it says that it is off", || !atrace_is_tag_enabled(TAG));
            }
            // Without events, the thread of the watch asks libandroid.
            settle();
            let told = std::sync::Arc::new(std::sync::Mutex::new(AtraceTag::empty()));
            let telling = std::sync::Arc::clone(&told);
            let _watch = watch::watch(move |tags| *telling.lock().unwrap() = tags).unwrap();
            std::fs::write(&enabled, "").unwrap();
            let _switched = common::control().enable("*").unwrap();
            common::until("the watch tells", || *told.lock().unwrap() == TAG);
            println!("DONE");
        });
        let directory = tempfile::tempdir().unwrap();
        let library = standins::build("libandroid", 29, directory.path());
        let place = Place::file();
        let ran = common::run(
            place
                .command(&name)
                .env("ATRACE_BACKEND", format!("ndk:{}", library.display()))
                .env("STANDIN_LAG_MS", "5")
                .env("STANDIN_ENABLED", directory.path().join("enabled")),
        );
        let expected: Vec<_> = (0..5).map(|round| format!("counter on {round}")).collect();
        assert_eq!(ran.said("CALL"), expected);
        assert_eq!(ran.said("DONE").len(), 1);
    }

    /// Sets the function (`call`) that the stand-in for libcutils calls between reading the flags and storing its mask.
    /// `tags` is the value that `switch_once_more` stores as the stand-in's flags.
    #[allow(unsafe_code, reason = "C's dynamic linker is asked")]
    fn within_update(library: &Path, tags: u64, call: extern "C" fn()) {
        use std::os::unix::ffi::OsStrExt as _;
        let path = std::ffi::CString::new(library.as_os_str().as_bytes()).unwrap();
        // SAFETY: the library is already loaded, and its two variables have these types.
        unsafe {
            let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
            assert!(!library.is_null());
            let within = libc::dlsym(library, c"standin_within".as_ptr()).cast::<Option<extern "C" fn()>>();
            let read = libc::dlsym(library, c"standin_tags".as_ptr()).cast::<u64>();
            assert!(!within.is_null() && !read.is_null());
            within.write(Some(call));
            STANDIN_TAGS.store(read, std::sync::atomic::Ordering::SeqCst);
            NEW_TAGS.store(tags, std::sync::atomic::Ordering::SeqCst);
        }
    }

    static STANDIN_TAGS: std::sync::atomic::AtomicPtr<u64> =
        std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());
    static NEW_TAGS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

    /// Is called when libcutils has read the flags but not yet stored its mask. The first call switches the flags once
    /// more.
    #[allow(unsafe_code, reason = "a variable of C")]
    extern "C" fn switch_once_more() {
        use std::sync::atomic::Ordering;
        let read = STANDIN_TAGS.swap(std::ptr::null_mut(), Ordering::SeqCst);
        if !read.is_null() {
            // SAFETY: `read` points to a variable of the stand-in, which the stand-in has already read on this thread.
            unsafe { read.write(NEW_TAGS.load(Ordering::SeqCst)) };
            common::control().enable(AtraceTag::Camera).unwrap().keep();
        }
    }

    fn libcutils() -> std::path::PathBuf {
        let backend = std::env::var("ATRACE_BACKEND").unwrap();
        backend.strip_prefix("cutils:").unwrap().into()
    }

    #[test]
    fn what_changes_while_libcutils_reads_it_reads_again() {
        let name = case!({
            let before = atrace_get_enabled_tags();
            assert!(!before.contains(AtraceTag::Camera));
            within_update(&libcutils(), 0x1401, switch_once_more);
            common::control().enable(AtraceTag::Video).unwrap().keep();
            assert_eq!(atrace_get_enabled_tags().bits(), 0x1401);
        });
        let directory = tempfile::tempdir().unwrap();
        let library = standins::build("libcutils", 34, directory.path());
        through(&name, "cutils", &library, Some(34), directory.path());
    }

    #[test]
    fn libcutils_is_parked_and_says_so() {
        let name = case!({
            atrace_instant(TAG, "on");
            atrace_set_tracing_enabled(false);
            assert_eq!(atrace_get_enabled_tags(), AtraceTag::NotReady);
            assert_eq!(atrace_get_enabled_tags(), AtraceTag::NotReady, "also where nothing changed since");
            atrace_instant(TAG, "parked");
            atrace_set_tracing_enabled(true);
            assert_eq!(atrace_get_enabled_tags().bits(), 0x1001);
            atrace_instant(TAG, "on again");
        });
        let directory = tempfile::tempdir().unwrap();
        let library = standins::build("libcutils", 34, directory.path());
        let (calls, _) = through(&name, "cutils", &library, Some(34), directory.path());
        assert_eq!(calls, ["I|on", "I|on again"]);
    }

    #[test]
    fn libandroid_says_whether_it_is_on() {
        let name = case!({
            let enabled = std::env::var_os("STANDIN_ENABLED").unwrap();
            atrace_instant(TAG, "off");
            assert_eq!(atrace_get_enabled_tags(), AtraceTag::empty());
            settle();
            std::fs::write(&enabled, "").unwrap();
            atrace_instant(TAG, "not asked again");
            atrace_update_tags();
            atrace_instant(TAG, "on");
            atrace_instant(AtraceTag::Always | AtraceTag::Camera, "another tag");
            assert_eq!(atrace_get_enabled_tags(), TAG);
            atrace_set_tracing_enabled(false);
            atrace_instant(TAG, "parked");
            assert_eq!(atrace_get_enabled_tags(), AtraceTag::NotReady);
            atrace_set_tracing_enabled(true);
            std::fs::remove_file(&enabled).unwrap();
            // After every change of the flags, `atrace` asks libandroid again.
            let _switched = common::control().enable("*").unwrap();
            atrace_instant(TAG, "off again");
            assert_eq!(sink().kind(), "Ndk");
        });
        let directory = tempfile::tempdir().unwrap();
        let library = standins::build("libandroid", 29, directory.path());
        let (calls, _) = through(&name, "ndk", &library, None, &directory.path().join("enabled"));
        assert_eq!(calls, ["begin on", "end"]);
    }

    #[test]
    fn a_library_that_is_none_is_refused() {
        let name = case!({
            atrace_instant(TAG | AtraceTag::Always, "x");
            assert_eq!(sink().kind(), "None");
        });
        let directory = tempfile::tempdir().unwrap();
        let android_5 = standins::build("libandroid", 22, directory.path());
        let place = Place::file().on();
        for (backend, reason) in [
            (format!("ndk:{}", android_5.display()), "Android before 6"),
            (format!("cutils:{}", android_5.display()), "no libcutils that traces"),
            ("ndk:/nonexistent/libandroid.so".to_owned(), "/nonexistent/libandroid.so"),
        ] {
            let ran = common::run(place.command(&name).env("ATRACE_BACKEND", &backend));
            assert!(
                ran.stderr.contains(reason) && ran.stderr.ends_with("; tracing is off\n"),
                "{}",
                ran.stderr
            );
        }
        assert_eq!(place.text(), "");
    }
}
