//! Tests switches of tracing by properties: which properties a switch sets, which patterns are listed, and which values
//! remain after the switch is undone.

mod common;

use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::time::Duration;

use atrace::control::{Control, Properties, ThisProcess};
use atrace::*;
use common::{Place, case, control};

const TAG: AtraceTag = AtraceTag::App;

/// Returns every non-empty property of this case's property store.
fn properties() -> Vec<(String, String)> {
    let mut all = Vec::new();
    Properties::open()
        .unwrap()
        .for_each(|key, value, _| all.push((key.to_owned(), value.to_string_lossy().into_owned())))
        .unwrap();
    all.retain(|(_, value)| !value.is_empty());
    all.sort();
    all
}

fn patterns() -> Vec<String> {
    control().patterns().into_iter().map(|pattern| String::from_utf8(pattern).unwrap()).collect()
}

fn is_on() -> bool {
    atrace_is_tag_enabled(TAG)
}

#[test]
fn this_process_is_switched_and_everything_is_put_back() {
    let name = case!({
        let before = properties();
        let switched = control().enable(ThisProcess).unwrap();
        assert!(is_on());
        let pattern = &patterns()[0];
        let changes = [
            ("debug.atrace.app_0", pattern.as_str()),
            ("debug.atrace.app_number", "1"),
            ("debug.atrace.tags.enableflags", "0"),
        ];
        assert_eq!(
            switched.to_string(),
            changes.map(|(key, after)| format!("{key}: \"\" -> {after:?}")).join("\n")
        );
        // The property store contains these values, so other processes read them, too.
        for (key, after) in changes {
            assert!(properties().contains(&(key.to_owned(), after.to_owned())));
        }
        drop(switched);
        assert!(!is_on());
        assert_eq!(properties(), before);

        let switched = control().enable(ThisProcess).unwrap();
        switched.restore().unwrap();
        assert_eq!((properties(), is_on()), (before.clone(), false));

        let kept = control().enable("*").unwrap();
        kept.keep();
        assert!(is_on());
        drop(control().disable(ThisProcess).unwrap());
        assert!(is_on());
        let off = control().disable(ThisProcess).unwrap();
        assert!(!is_on());
        off.restore().unwrap();
        assert!(is_on());
        control().disable("*").unwrap().keep();
        assert!(!is_on());
        assert_eq!(control().disable("*").unwrap().to_string(), "");
        assert_eq!(patterns(), [""; 0]);
    });
    Place::file().run(&name);
}

#[test]
fn guards_may_overlap_in_any_order() {
    let name = case!({
        let mut chance = common::Chance(11);
        for _ in 0..60 {
            let before = properties();
            let mut guards = Vec::new();
            let mut present: Vec<&str> = Vec::new();
            for _ in 0..40 {
                if chance.below(2) == 0 && guards.len() < 8 {
                    let pattern = ["*", "nobody", "no*", "*control*"][chance.below(4)];
                    guards.push((pattern, control().enable(pattern).unwrap()));
                    present.push(pattern);
                } else if !guards.is_empty() {
                    let (pattern, guard) = guards.swap_remove(chance.below(guards.len()));
                    drop(guard);
                    present.remove(present.iter().position(|other| *other == pattern).unwrap());
                }
                let mut found = patterns();
                let mut wanted = present.clone();
                found.sort();
                wanted.sort_unstable();
                assert_eq!(found, wanted);
                assert_eq!(is_on(), present.iter().any(|pattern| ["*", "*control*"].contains(pattern)));
            }
            drop(guards);
            assert!(!is_on());
            // A property that had no value may have the value 0 afterwards. Every reader treats 0 like no value.
            let flags = |all: &[(String, String)]| {
                all.iter().filter(|(_, value)| value != "0").cloned().collect::<Vec<_>>()
            };
            assert_eq!(flags(&properties()), flags(&before));
        }
    });
    Place::file().run(&name);
}

#[test]
fn tags_are_switched_without_touching_others() {
    let name = case!({
        let (camera, video, audio) = (AtraceTag::Camera, AtraceTag::Video, AtraceTag::Audio);
        assert_eq!(control().tags(), AtraceTag::empty());
        let first = control().enable(camera | video).unwrap();
        assert_eq!(control().tags(), camera | video);
        assert_eq!(first.to_string(), "debug.atrace.tags.enableflags: \"\" -> \"0x600\"");
        let second = control().enable(video | audio).unwrap();
        drop(first);
        // `video` is off although `second` has enabled it, too: the drop of `first` has switched it off. A mask can't
        // record that two guards have enabled a tag.
        assert_eq!(control().tags(), audio);
        drop(second);
        assert_eq!(control().tags(), AtraceTag::empty());

        // The end of a switch restores exactly the previous text of the flags.
        let properties = Properties::open().unwrap();
        for text in ["02002", "1026", " 0x402", "no number", ""] {
            properties.set("debug.atrace.tags.enableflags", text).unwrap();
            let off = control().disable(camera).unwrap();
            assert!(!atrace_is_tag_enabled(camera));
            assert_eq!(atrace_is_tag_enabled(AtraceTag::Graphics), text.contains(['1', '2']));
            drop(off);
            let on = control().enable("*").unwrap();
            assert!(is_on(), "a pattern is of no use while the flags are {text:?}");
            drop(on);
            assert_eq!(
                properties.get("debug.atrace.tags.enableflags").unwrap().unwrap().to_string_lossy(),
                text
            );
        }
        properties.set("debug.atrace.tags.enableflags", "0x402").unwrap();
        let all = control().disable(AtraceTag::from_bits_retain(!0)).unwrap();
        assert_eq!(control().tags(), AtraceTag::empty());
        // Other processes may enable a tag before the switch is undone.
        control().enable(audio).unwrap().keep();
        drop(all);
        assert_eq!(control().tags(), AtraceTag::from_bits_retain(0x402) | audio);
    });
    Place::file().run(&name);
}

/// Tests switches of a pattern together with a number: the number of the pattern's entries in the list that belong to
/// other callers.
#[test]
fn a_pattern_is_switched_beside_the_entries_of_others() {
    let name = case!({
        let changes = |switched: Result<control::Switched, control::Error>| {
            let switched = switched.unwrap();
            let is_change = !switched.to_string().is_empty();
            switched.keep();
            is_change
        };
        assert!(changes(control().enable(("own", 0))));
        assert!(!changes(control().enable(("own", 0))), "it is listed already");
        assert!(changes(control().enable("other")));
        assert!(changes(control().enable(("own", 1))));
        assert!(!changes(control().enable(("own", 1))), "it is listed twice");
        assert_eq!(patterns(), ["own", "other", "own"]);

        assert!(!changes(control().disable(("own", 2))), "both belong to others");
        assert!(!changes(control().disable(("none", 0))));
        drop(control().disable(("own", 1)).unwrap());
        assert_eq!(patterns(), ["own", "other", "own"], "the switch is taken back");
        assert!(changes(control().disable(("own", 0))));
        assert_eq!(patterns(), ["own", "other"], "one entry at a time, the last one first");
        assert!(changes(control().disable(("own", 0))));
        control().disable("other").unwrap().keep();
        assert_eq!(patterns(), [""; 0]);
    });
    Place::file().run(&name);
}

/// Tests a pattern that is not UTF-8, as the name of a program may be.
#[test]
#[cfg_attr(target_os = "android", ignore = "the property service refuses such values")]
fn a_pattern_may_have_any_bytes() {
    let name = case!({
        let switched = control().enable(b"pro\xffgram").unwrap();
        assert_eq!(control().patterns(), [b"pro\xffgram"]);
        control().disable(&control().patterns()[0]).unwrap().keep();
        assert_eq!(control().patterns(), [b""; 0]);
        drop(switched);
    });
    Place::file().run(&name);
}

#[test]
fn a_panic_puts_back_too() {
    let name = case!({
        let before = properties();
        let caught = std::panic::catch_unwind(|| {
            let _switched = control().enable(ThisProcess).unwrap();
            let _nested = control().enable(AtraceTag::Camera).unwrap();
            assert!(is_on());
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(caught.is_err());
        assert_eq!(properties(), before);
    });
    Place::file().run(&name);
}

#[test]
fn bad_patterns_are_refused_and_change_nothing() {
    let name = case!({
        let before = properties();
        for pattern in ["", "a\0b", &"x".repeat(92)] {
            let error = control().enable(pattern).unwrap_err().to_string();
            assert!(!error.is_empty());
            assert_eq!(properties(), before, "{pattern:?}");
        }
        let longest = "*".repeat(91);
        let switched = control().enable(&longest).unwrap();
        assert!(is_on());
        drop(switched);
        assert_eq!(control().disable("").unwrap().to_string(), "");
        assert!(std::error::Error::source(&control().enable(&"x".repeat(92)).unwrap_err()).is_some());

        // The test must not fill Android's store.
        if cfg!(not(target_os = "android")) {
            // Adds patterns until the store is full: the error names the reason, and all switches can still be undone.
            let mut all = Vec::new();
            let error = loop {
                match control().enable(&format!("p{}", all.len())) {
                    Ok(switched) => all.push(switched),
                    Err(error) => break error.to_string(),
                }
                assert!(all.len() < 2000);
            };
            assert!(all.len() > 200 && error.contains("no room"), "{} {error}", all.len());
            assert_eq!(patterns().len(), all.len());
            drop(all);
            assert_eq!(patterns(), [""; 0]);
        }
        // Tests invalid counts of patterns, as other processes may have stored them.
        let store = Properties::open().unwrap();
        for number in ["-3", "many", "99999999999999", "2147483647"] {
            store.set("debug.atrace.app_number", number).unwrap();
            let switched = control().enable("*").unwrap();
            assert!(is_on(), "{number}");
            drop(switched);
            assert!(!is_on());
        }
    });
    Place::file().run(&name);
}

#[test]
fn a_process_of_any_name_can_be_switched() {
    let name = case!({
        let other = std::env::var("OTHER").unwrap();
        let switched = control().enable(ThisProcess).unwrap();
        assert!(is_on(), "{switched}");
        assert!(patterns()[0].len() <= 91);
        println!("PATTERN {}", patterns()[0]);
        atrace_instant(TAG, "on");
        // The pattern does not match a program with a similar name.
        if !other.is_empty() {
            let pattern = std::ffi::CString::new(patterns()[0].as_str()).unwrap();
            assert!(!atrace_sys::process::matches(&pattern, &std::ffi::CString::new(other).unwrap()));
        }
        let off = control().disable(ThisProcess).unwrap();
        assert!(!is_on());
        drop(off);
        drop(switched);
        assert!(!is_on());
    });
    let place = Place::file();
    let deep = "deep/".repeat(60);
    for (argv0, other) in [
        ("name", "nama"),
        ("/opt/a*b/c?d/[e]/f", "/opt/aXb/cXd/e/f"),
        ("/opt/back\\slash\\*", "/opt/backslash*"),
        ("[!a]", "b"),
        ("[[:alpha:]]", "a"),
        ("a]b[c", "a]bc"),
        ("with space\tand tab", "with space and tab"),
        ("/päth/to/naïve/…", "/path/to/naive/..."),
        (&format!("/{deep}bench-0123456789abcdef"), "/bench-0123456789abcde"),
        (&"x".repeat(4000), "y"),
        (&"[".repeat(300), "("),
        (&format!("/{deep}{}", "*".repeat(200)), "a"),
        (&"é".repeat(200), "e"),
        (&"\u{1}".repeat(91), "\u{2}"),
    ] {
        // The names have no newline, because libcutils reads only the first line of a name.
        let ran = common::run(place.command(&name).arg0(argv0).env("OTHER", other));
        assert_eq!(ran.said("PATTERN").len(), 1, "{argv0}");
    }
}

/// Tests a program with a long path, as `cargo test` creates it.
#[test]
fn a_program_deep_in_the_file_system_can_be_switched() {
    let name = case!({
        assert!(std::env::args().next().unwrap().len() > 300);
        let switched = control().enable(ThisProcess).unwrap();
        assert!(is_on() && patterns()[0].starts_with("*/"), "{switched}");
        drop(begin_scoped_event(TAG, "x"));
    });
    let place = Place::file();
    let directory = place.path(&"long-directory-name/".repeat(20));
    std::fs::create_dir_all(&directory).unwrap();
    let link = directory.join("program");
    std::os::unix::fs::symlink(std::env::current_exe().unwrap(), &link).unwrap();
    let pid = common::run(&mut place.command_of(&link, &name)).pid;
    assert_eq!(place.text(), format!("B|{pid}|xE|{pid}"));
}

/// Tests that a process can switch tracing of another process through the property store.
#[test]
fn another_process_switches_this_one() {
    let name = case!({
        println!("READY");
        common::until("it is on", is_on);
        atrace_instant(TAG, "on");
        println!("ON");
        common::until("it is off", || !is_on());
    });
    let place = Place::file();
    let mut child = place.command(&name).spawn().unwrap();
    let switched = place.control().enable("*").unwrap();
    common::until("the event is there", || !place.text().is_empty());
    drop(switched);
    assert_eq!(place.text(), format!("I|{}|on", child.id()));
    let _ = child.stdin.take();
    assert!(common::end_of(child).status.success());
}

/// Returns a control that waits for the lock of the properties for up to 100 seconds. If many processes change the
/// properties at the same time on a busy machine, a process may have to wait for longer than the usual limit.
fn patient() -> Control {
    control().patience(Duration::from_secs(100))
}

#[test]
fn threads_that_switch_at_once_lose_nothing() {
    let name = case!({
        // On Android only two threads switch, because Android's property service is slow. A thread that waits for the
        // lock may be overtaken many times by threads that switch often.
        let threads = if cfg!(target_os = "android") { 2 } else { 6 };
        let before = properties();
        std::thread::scope(|scope| {
            for number in 0..threads {
                scope.spawn(move || {
                    for round in 0..40 {
                        let own = format!("*{}", ["", "?", "*"][(number + round) % 3]);
                        let switched = patient().enable(&own).unwrap();
                        assert!(is_on(), "{:?}", patterns());
                        drop(switched);
                    }
                });
            }
        });
        assert_eq!((patterns(), is_on()), (vec![], false));
        let (same, new): (Vec<_>, Vec<_>) =
            properties().into_iter().partition(|property| before.contains(property));
        assert_eq!(same, before);
        assert!(new.iter().all(|(_, value)| value == "0"), "{new:?}");
    });
    Place::file().run(&name);
}

/// Starts several processes of the test case at once. Each process gets a number: see [`number`].
fn at_once(place: &Place, case: &str, times: usize) {
    let start = |number: usize| {
        place.command(case).env("NUMBER", number.to_string()).env("GO", place.path("go")).spawn()
    };
    let children: Vec<_> = (0..times).map(|number| start(number).unwrap()).collect();
    std::fs::write(place.path("go"), "").unwrap();
    for child in children {
        let ran = common::end_of(child);
        let is_done = ran.status.success() && ran.stdout.contains("1 passed");
        assert!(is_done, "{}\n{}", ran.stdout, ran.stderr);
    }
}

/// Returns the number that [`at_once`] has given to this process. First waits until [`at_once`] has started all
/// processes of the case.
fn number() -> usize {
    let go = std::path::PathBuf::from(std::env::var_os("GO").unwrap());
    common::until("all start", || go.exists());
    std::env::var("NUMBER").unwrap().parse().unwrap()
}

#[test]
#[cfg_attr(target_os = "android", ignore = "there is no lock between processes")]
fn processes_that_switch_on_at_once_lose_nothing() {
    let name = case!({
        let number = number();
        for round in 0..20 {
            patient().enable(&format!("program {number}.{round}")).unwrap().keep();
        }
    });
    let place = Place::file();
    at_once(&place, &name, 8);
    let mut found = place.control().patterns();
    let mut wanted: Vec<_> =
        (0..8).flat_map(|number| (0..20).map(move |round| format!("program {number}.{round}"))).collect();
    found.sort();
    wanted.sort();
    let lost = wanted.iter().filter(|pattern| !found.iter().any(|other| other == pattern.as_bytes())).count();
    assert_eq!(lost, 0, "lost of {}", wanted.len());
    assert!(found.iter().eq(wanted.iter().map(String::as_bytes)), "{found:?}");
    wanted.iter().for_each(|pattern| place.control().disable(pattern).unwrap().keep());
    assert_eq!(place.control().patterns(), [b""; 0]);
}

#[test]
#[cfg_attr(target_os = "android", ignore = "there is no lock between processes")]
fn processes_that_switch_themselves_leave_nothing_on() {
    let name = case!({
        let own = format!("{}*", "?".repeat(number()));
        for round in 0..2000 {
            let switched = patient().enable(&own).unwrap();
            assert!(is_on(), "{round}: {:?}", patterns());
            switched.restore().unwrap();
        }
    });
    let place = Place::file();
    at_once(&place, &name, 4);
    assert_eq!(place.control().patterns(), [b""; 0]);
    let switched = place.control().enable("*").unwrap();
    assert!(switched.to_string().starts_with("debug.atrace.app_0: "), "{switched}");
}

/// Tests that a process may be killed at any point of a change of the list of patterns: the patterns of other processes
/// stay listed exactly once.
#[test]
#[cfg_attr(target_os = "android", ignore = "there is no lock between processes")]
fn a_switch_that_is_killed_is_whole_or_mended_by_the_next() {
    let name = case!({
        println!("READY");
        loop {
            control().enable("coming").unwrap().keep();
            control().disable("coming").unwrap().keep();
        }
    });
    let place = Place::file();
    let control = place.control();
    let first = control.enable("coming").unwrap();
    control.enable("staying").unwrap().keep();
    drop(first);
    let mut chance = common::Chance(5);
    for round in 0..60 {
        let mut child = place.command(&name).spawn().unwrap();
        let mut ready = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("READY") {
            assert_ne!(std::io::BufRead::read_line(&mut ready, &mut line).unwrap(), 0);
        }
        std::thread::sleep(Duration::from_micros(chance.below(3000) as u64));
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL), "round {round}");
        let found = control.patterns();
        let count = |pattern: &str| found.iter().filter(|other| *other == pattern.as_bytes()).count();
        assert_eq!((count("staying"), found.len() - count("coming")), (1, 1), "round {round}: {found:?}");
        assert!(count("coming") <= 1, "round {round}: {found:?}");
        control.disable("coming").unwrap().keep();
        assert_eq!(control.patterns(), [b"staying"], "round {round}");
    }
}

/// Runs `body` in a forked child, whose exit status is 0 if `body` returns true.
#[allow(unsafe_code)]
fn in_child(body: impl FnOnce() -> bool) {
    // SAFETY: the child only calls `body` and ends. The test case is the only test in its process.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let held = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(false);
        // SAFETY: no preconditions; ends the child at once.
        unsafe { libc::_exit(i32::from(!held)) };
    }
    let mut status = 0;
    // SAFETY: `status` is writable.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child's part did not hold");
}

#[test]
fn a_child_switches_nothing_of_its_parents() {
    let name = case!({
        let mut switched = Some(control().enable(ThisProcess).unwrap());
        let mut restored = Some(control().enable(AtraceTag::Camera).unwrap());
        let before = properties();
        in_child(|| {
            drop(switched.take());
            is_on()
        });
        in_child(|| {
            let _ = restored.take().unwrap().restore();
            control().tags() == AtraceTag::Camera
        });
        assert!(is_on());
        assert_eq!(properties(), before);
        // The child can undo a switch that it has made itself.
        in_child(|| {
            drop(control().enable(AtraceTag::Video).unwrap());
            control().tags() == AtraceTag::Camera
        });
        drop((switched, restored));
        assert!(!is_on());
        assert_eq!(patterns(), [""; 0]);
    });
    Place::file().run(&name);
}

#[test]
#[cfg(target_os = "linux")]
fn a_control_takes_its_mapping_with_it() {
    let name = case!({
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("properties");
        let mappings = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            maps.lines().filter(|line| line.ends_with(path.to_str().unwrap())).count()
        };
        for _ in 0..100 {
            let control = Control::from(Properties::open_path(&path).unwrap());
            assert_eq!(control.patterns(), [b""; 0]);
            let switched = control.enable("*").unwrap();
            drop(control);
            assert_eq!(switched.to_string().lines().count(), 3);
            drop(switched);
        }
        assert_eq!(mappings(), 0);
        // The store stays mapped until the switch is undone.
        let switched = Control::from(Properties::open_path(&path).unwrap()).enable("*").unwrap();
        assert_eq!(mappings(), 1);
        switched.restore().unwrap();
        assert_eq!(mappings(), 0);
        assert_eq!(Control::from(Properties::open_path(&path).unwrap()).patterns(), [b""; 0]);
    });
    Place::file().run(&name);
}

/// Tests that if the last part of a switch fails, the earlier parts are undone.
#[test]
#[cfg(target_os = "linux")]
fn what_fails_halfway_is_put_back() {
    let name = case!({
        let store = Properties::open().unwrap();
        // Fills the store so that there is room for a pattern and for the count of patterns, but not for the flags.
        for number in 0..254 {
            store.set(&format!("other.{number}"), "x").unwrap();
        }
        let before = properties();
        let error = control().enable("*").unwrap_err().to_string();
        assert!(error.contains("enableflags") && error.contains("no room"), "{error}");
        assert_eq!((patterns(), properties()), (vec![], before));
    });
    Place::file().run(&name);
}

#[test]
fn errno_is_kept() {
    let name = case!({
        let keeps = |what: &str, body: &mut dyn FnMut()| {
            common::set_errno(4711);
            body();
            assert_eq!(common::errno(), 4711, "{what}");
        };
        let control = control();
        let mut switched = None;
        keeps("enable", &mut || switched = Some(control.enable("*").unwrap()));
        keeps("restore", &mut || switched.take().unwrap().restore().unwrap());
        if cfg!(target_os = "android") {
            return;
        }
        keeps("open", &mut || drop(Control::open()));
        let kept = control.enable("*").unwrap();
        std::fs::remove_file(std::env::var_os("ATRACE_PROPERTIES").unwrap()).unwrap();
        keeps("enable of what is gone", &mut || assert!(control.enable("*").is_err()));
        keeps("disable of what is gone", &mut || assert!(control.disable("*").is_err()));
        keeps("tags of what is gone", &mut || assert!(control.enable(AtraceTag::Camera).is_err()));
        let mut kept = Some(kept);
        keeps("restore of what is gone", &mut || assert!(kept.take().unwrap().restore().is_err()));
    });
    Place::file().run(&name);
}

/// Tests a program with an empty name. If the count includes a pattern whose property is not set, libcutils reads this
/// pattern as empty. An empty pattern matches the empty name.
#[test]
fn a_program_without_a_name_is_meant_by_a_pattern_that_is_not_set() {
    let name = case!({
        println!("ON {}", is_on());
    });
    let place = Place::file();
    place.set("debug.atrace.app_number", "1");
    place.set("debug.atrace.tags.enableflags", "0");
    let mut nameless = place.command(&name);
    let ran = common::run(nameless.arg0(""));
    assert_eq!(ran.said("ON"), ["true"]);
    assert_eq!(place.run(&name).said("ON"), ["false"]);
}

/// Tests a lock that another process does not release in time: the properties are not changed, and the caller gets an
/// error.
#[test]
#[cfg(target_os = "linux")]
fn a_switch_waits_as_long_as_it_was_told_and_then_changes_nothing() {
    let name = case!({
        let store = Properties::open().unwrap();
        let control = control().patience(Duration::from_millis(5));
        let on = |pattern| control.enable(pattern).unwrap();
        let (switched, restored, dropped) = (on("*"), on("restored"), on("dropped"));
        let before = properties();
        let held = store.transaction(std::time::Duration::ZERO).unwrap();
        let is_held =
            |error: atrace::control::Error| assert!(error.to_string().contains("holds the lock"), "{error}");
        is_held(control.enable("other").unwrap_err());
        is_held(control.disable("*").unwrap_err());
        is_held(restored.restore().unwrap_err());
        drop(dropped);
        assert_eq!(properties(), before);
        drop(held);
        control.enable("other").unwrap().keep();
        switched.restore().unwrap();
        assert_eq!(patterns(), ["restored", "dropped", "other"]);
    });
    let ran = Place::file().run(&name);
    assert_eq!(ran.stderr.matches("could not take a switch back").count(), 1, "{}", ran.stderr);
}

/// Returns how many times this thread has gone to sleep.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn sleeps() -> libc::c_long {
    // SAFETY: `rusage` consists of numbers, and zero is a valid value of each.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live rusage.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) }, 0);
    usage.ru_nvcsw
}

/// Tests the first event of a process that has changed its user since the library chose the sink and opened the store.
#[test]
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn the_first_event_never_sleeps() {
    let name = case!({
        // SAFETY: `setuid` has no preconditions. The test case is the only test in its process.
        assert_eq!(unsafe { libc::setuid(65534) }, 0);
        let before = sleeps();
        atrace_instant(TAG, "first");
        assert!(sleeps() - before < 20, "it slept {} times", sleeps() - before);
    });
    if common::is_root("the_first_event_never_sleeps") {
        let place = Place::file().on();
        place.run(&name);
        assert!(place.text().ends_with("|first"), "{}", place.text());
    }
}
