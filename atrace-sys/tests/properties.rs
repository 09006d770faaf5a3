//! Tests system properties on a host, with real files, threads and processes.
//!
//! A test that needs a second process runs this program again, with only [`helper`] selected. An environment variable
//! names the role, that is, the work that `helper` does. [`Properties::open`] opens only one store per process, but the
//! tests use a different store each. So only helper processes call it. No test checks that `ATRACE_PROPERTIES` is
//! ignored under `AT_SECURE`, because such a test would need a set-user-id program.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "signals, forks and how often a thread slept, as C does it")]

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{BufRead, BufReader, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use atrace_sys::properties::{ErrorKind, KEY_MAX, PATIENCE, Properties, VALUE_MAX, Value, Wait};
use tempfile::TempDir;

const SIZE: u64 = 98368;
const ROLE: &str = "PROPERTIES_TEST_ROLE";
const STORE: &str = "ATRACE_PROPERTIES";

/// A directory for one property store. Dropping the `Place` removes the directory with all its files.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("properties")
    }

    fn open(&self) -> Properties {
        Properties::open_path(&self.path()).unwrap()
    }

    fn refusal(&self) -> ErrorKind {
        let error = Properties::open_path(&self.path()).expect_err("the store was opened");
        let text = error.to_string();
        assert!(text.contains(self.0.path().to_str().unwrap()), "says which: {text}");
        error.kind()
    }

    /// Checks that the directory contains only the store's file, and no temporary file.
    fn assert_tidy(&self) {
        let names: Vec<_> =
            fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["properties"]);
    }
}

fn text(properties: &Properties, key: &str) -> Option<String> {
    properties.get(key).unwrap().map(|value| value.to_string_lossy().into_owned())
}

/// Returns the command that runs [`helper`] with this role in another process.
fn start(role: &str, store: Option<&Path>) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "helper", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command.env_remove(STORE).envs(store.map(|path| (STORE, path)));
    command.stdout(Stdio::piped());
    command
}

/// Waits until the helper process has printed `word`, and returns the rest of the line after `word`.
///
/// The word may be in the middle of a line, because the test harness does not end its own line before the helper
/// prints.
fn expect(child: &mut Child, word: &str) -> String {
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    for line in lines {
        if let Some((_, rest)) = line.unwrap().split_once(word) {
            return rest.trim().to_owned();
        }
    }
    panic!("the helper ended without {word}");
}

fn finish(mut child: Child) {
    // Reads the rest of the helper's output, so that the helper does not block on a full pipe.
    let _ = std::io::copy(child.stdout.as_mut().unwrap(), &mut std::io::sink());
    assert!(child.wait().unwrap().success());
}

/// Returns how many times this thread has gone to sleep.
fn sleeps() -> libc::c_long {
    // SAFETY: `rusage` consists of numbers, and zero is a valid value of each.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live rusage.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) }, 0);
    usage.ru_nvcsw
}

/// Does the work of the processes that the tests start. This is not a test itself.
#[test]
fn helper() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let own = || Properties::open().unwrap();
    match role.split_whitespace().collect::<Vec<_>>()[..] {
        ["set", key, value] => own().set(key, value).unwrap(),
        ["get", key] => println!("VALUE:{}", text(own(), key).unwrap_or_default()),
        ["path"] => println!("PATH:{}", own().path().display()),
        ["inode"] => {
            let path = own().path().to_owned();
            println!("INODE:{}", fs::metadata(path).unwrap().ino());
        }
        ["wait", key] => {
            let property = own().find(key).unwrap();
            let (serial, _) = property.read().unwrap();
            println!("READY:");
            let changed =
                own().wait(Wait::Property(property), serial, Some(Duration::from_secs(600))).unwrap();
            assert_eq!(changed, Some(property.serial()));
            println!("WOKEN:{}", text(own(), key).unwrap());
        }
        ["wait-any", key] => {
            let serial = own().area_serial();
            println!("READY:");
            own().wait(Wait::Any, serial, Some(Duration::from_secs(600))).unwrap().expect("no time-out");
            println!("WOKEN:{}", text(own(), key).unwrap());
        }
        ["write-forever"] => {
            for round in 0u32.. {
                let key = format!("key.{}", round % 3);
                let value = char::from(b'a' + (round % 26) as u8).to_string();
                own().set(&key, value.repeat(VALUE_MAX)).unwrap();
                if round == 0 {
                    println!("READY:");
                }
            }
        }
        ["open-other"] => {
            let error = Properties::open_uid(0).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
            let error = Properties::open_uid(1_899_999_999).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
            assert!(
                !Properties::path_for_uid(1_899_999_999).parent().unwrap().exists(),
                "nothing is made for them"
            );
        }
        ["open-retried"] => {
            let error = Properties::open().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Missing, "{error}");
            fs::create_dir(Path::new(&std::env::var_os(STORE).unwrap()).parent().unwrap()).unwrap();
            let opened: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> =
                    (0..8).map(|_| scope.spawn(|| std::ptr::from_ref(own()).addr())).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(opened.iter().all(|address| *address == opened[0]), "one store per process");
        }
        ["make-forever"] => {
            let path = PathBuf::from(std::env::var_os(STORE).unwrap());
            println!("READY:");
            loop {
                let _ = Properties::open_path(&path);
                let _ = fs::remove_file(&path);
            }
        }
        ["try"] => {
            let before = sleeps();
            let opened = Properties::try_open();
            assert!(sleeps() - before < 20, "it slept {} times", sleeps() - before);
            println!("VALUE:{:?}", opened.map(drop).map_err(|error| error.kind()));
        }
        ["hold"] => {
            let mut transaction = own().transaction(PATIENCE).unwrap();
            transaction.set("a", "half").unwrap();
            println!("READY:");
            std::thread::sleep(Duration::from_secs(600));
        }
        ["fork"] => {
            let mut transaction = own().transaction(PATIENCE).unwrap();
            transaction.set("a", "parent's").unwrap();
            // SAFETY: the child runs only the block below, and ends.
            let child = unsafe { libc::fork() };
            assert!(child >= 0);
            if child == 0 {
                let is_refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    let refused = transaction.set("a", "child's").map_err(|error| error.kind());
                    drop(transaction);
                    refused == Err(ErrorKind::Busy)
                }));
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(!is_refused.unwrap_or(false))) };
            }
            let mut status = 0;
            // SAFETY: `status` is writable.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "the child was refused");
            let other = own().transaction(Duration::ZERO).map(drop).map_err(|error| error.kind());
            assert_eq!(other, Err(ErrorKind::Busy), "it still is the parent's");
            transaction.set("b", "parent's").unwrap();
            drop(transaction);
            own().transaction(Duration::ZERO).unwrap();
            assert_eq!(text(own(), "a").as_deref(), Some("parent's"));
        }
        _ => panic!("unknown role {role}"),
    }
}

#[test]
fn a_store_is_created_set_and_read() {
    let place = Place::new();
    let properties = place.open();
    assert_eq!(properties.path(), place.path());
    let data = fs::metadata(place.path()).unwrap();
    assert_eq!((data.len(), data.mode() & 0o7777), (SIZE, 0o600));
    place.assert_tidy();

    assert_eq!(properties.get("debug.a").unwrap(), None);
    assert!(properties.find("debug.a").is_none());
    properties.set("debug.a", "1").unwrap();
    properties.set("debug.b", b"\xff\xfe").unwrap();
    properties.set("debug.empty", "").unwrap();
    assert_eq!(text(&properties, "debug.a").as_deref(), Some("1"));
    assert_eq!(properties.get("debug.b").unwrap().unwrap().as_bytes(), b"\xff\xfe");
    assert!(properties.get("debug.empty").unwrap().unwrap().is_empty());
    properties.check().unwrap();

    let other = place.open();
    let mut all = Vec::new();
    other.for_each(|key, value, serial| all.push((key.to_owned(), *value, serial))).unwrap();
    assert_eq!(
        all.iter().map(|(key, ..)| key.as_str()).collect::<Vec<_>>(),
        ["debug.a", "debug.b", "debug.empty"]
    );
    for (key, value, serial) in all {
        assert_eq!(other.find(&key).unwrap().read(), Some((serial, value)));
    }
}

/// Tests that the layout of the file is as documented, because programs in other languages may read the file.
#[test]
fn the_layout_is_as_documented() {
    let place = Place::new();
    let properties = place.open();
    properties.set("debug.atrace.tags.enableflags", "0x1000").unwrap();
    properties.set("debug.atrace.tags.enableflags", "0x2").unwrap();
    let bytes = fs::read(place.path()).unwrap();
    let number = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(&bytes[..8], b"ATRPROP\x01");
    assert_eq!([number(8), number(12), number(16)], [256, 1, 3]);
    assert!(bytes[20..64].iter().all(|byte| *byte == 0));
    assert_eq!([number(64), number(68)], [3 << 1 | 1, 29]);
    assert_eq!(&bytes[72..102], b"debug.atrace.tags.enableflags\0");
    assert_eq!(&bytes[64 + 192..64 + 199], b"0x1000\0");
    assert_eq!(&bytes[64 + 288..64 + 292], b"0x2\0");
    assert_eq!(bytes.len() as u64, SIZE);
}

#[test]
fn serials_change_with_every_set() {
    let place = Place::new();
    let properties = place.open();
    properties.set("a", "1").unwrap();
    properties.set("b", "1").unwrap();
    let (a, b) = (properties.find("a").unwrap(), properties.find("b").unwrap());
    let old = (a.serial(), b.serial(), properties.area_serial());
    assert_eq!(a.serial_word().unwrap().load(Ordering::Relaxed), old.0);
    properties.set("a", "1").unwrap();
    assert_ne!(a.serial(), old.0, "also when the value is the same");
    assert_eq!(b.serial(), old.1);
    assert_ne!(properties.area_serial(), old.2);
    assert_eq!(properties.area_serial_word().unwrap().load(Ordering::Relaxed), properties.area_serial());
    assert_eq!(a.read(), Some((a.serial(), Value::new(b"1").unwrap())));

    let area = properties.area_serial();
    properties.set("c", "").unwrap();
    assert_ne!(properties.area_serial(), area, "a new property is a change");
}

#[test]
fn keys_and_values_have_limits() {
    let place = Place::new();
    let properties = place.open();
    let longest = "k".repeat(KEY_MAX);
    properties.set(&longest, "v".repeat(91)).unwrap();
    assert_eq!(text(&properties, &longest).unwrap().len(), 91);
    assert_eq!(properties.set("a", "v".repeat(92)).unwrap_err().kind(), ErrorKind::BadValue);
    assert_eq!(properties.set("a", "v\0").unwrap_err().kind(), ErrorKind::BadValue);
    for bad in ["", ".a", "a.", "a..b", "a b", "a/b", "ä", "a\0", &"k".repeat(KEY_MAX + 1)] {
        assert_eq!(properties.set(bad, "v").unwrap_err().kind(), ErrorKind::BadKey, "{bad:?}");
        assert_eq!(properties.get(bad).unwrap_err().kind(), ErrorKind::BadKey, "{bad:?}");
        assert!(properties.find(bad).is_none());
    }
    assert_eq!(properties.get("a").unwrap(), None);
}

#[test]
fn a_full_store_says_so_and_goes_on() {
    let place = Place::new();
    let properties = place.open();
    for number in 0..256 {
        properties.set(&format!("key.{number}"), number.to_string()).unwrap();
    }
    let error = properties.set("key.256", "v").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(error.to_string().contains("key.256"), "{error}");
    properties.set("key.255", "changed").unwrap();
    assert_eq!(text(&properties, "key.255").as_deref(), Some("changed"));
    assert_eq!(properties.get("key.256").unwrap(), None);
}

#[test]
fn waiting_ends_with_a_change_in_another_process() {
    let place = Place::new();
    let properties = place.open();
    properties.set("a", "before").unwrap();
    for role in ["wait a", "wait-any a"] {
        let woken = || {
            let mut child = start(role, Some(&place.path())).spawn().unwrap();
            expect(&mut child, "READY:");
            std::thread::sleep(Duration::from_millis(50)); // The helper probably sleeps by now, but need not.
            let set = Instant::now();
            properties.set("a", "after").unwrap();
            assert_eq!(expect(&mut child, "WOKEN:"), "after");
            let delay = set.elapsed();
            eprintln!("{role}: woken and heard of after {delay:?}");
            finish(child);
            delay
        };
        // If the writer does not wake the child, the child notices the change only after ten seconds. On a busy machine
        // some attempts may fail, so there are ten.
        assert!(
            (0..10).any(|_| woken() < Duration::from_secs(5)),
            "woken by its own looking around, not by the writer"
        );
    }
    // The other way round: another process sets a property, and this process is woken.
    let before = properties.area_serial();
    let child = start("set new value", Some(&place.path())).spawn().unwrap();
    assert!(properties.wait(Wait::Any, before, Some(Duration::from_secs(600))).unwrap().is_some());
    finish(child);
    assert_eq!(text(&properties, "new").as_deref(), Some("value"));
}

#[test]
fn waiting_knows_time_outs_and_old_serials() {
    let place = Place::new();
    let properties = place.open();
    properties.set("a", "1").unwrap();
    properties.set("b", "1").unwrap();
    let a = properties.find("a").unwrap();
    let serial = a.serial();
    assert_eq!(properties.wait(Wait::Property(a), serial.wrapping_sub(1), None).unwrap(), Some(serial));
    assert_eq!(properties.wait(Wait::Property(a), serial, Some(Duration::ZERO)).unwrap(), None);
    let start = Instant::now();
    properties.set("b", "2").unwrap();
    assert_eq!(properties.wait(Wait::Property(a), serial, Some(Duration::from_millis(30))).unwrap(), None);
    assert!(start.elapsed() >= Duration::from_millis(30));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| properties.wait(Wait::Property(a), serial, Some(Duration::MAX)).unwrap());
        std::thread::sleep(Duration::from_millis(20));
        properties.set("a", "2").unwrap();
        assert_eq!(waiter.join().unwrap(), Some(a.serial()));
    });
}

#[test]
fn waiting_can_be_stopped() {
    let place = Place::new();
    let properties = place.open();
    let serial = properties.area_serial();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            properties.wait_unless(Wait::Any, serial, None, || stop.load(Ordering::Acquire)).unwrap()
        });
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiter.is_finished());
        stop.store(true, Ordering::Release);
        while !waiter.is_finished() {
            properties.wake(Wait::Any);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(waiter.join().unwrap(), None);
    });
}

#[test]
fn the_environment_names_the_store_and_a_failure_is_not_kept() {
    let place = Place::new();
    let path = place.0.path().join("later").join("properties");
    finish(start("open-retried", Some(&path)).spawn().unwrap());
    assert_eq!(fs::metadata(path).unwrap().len(), SIZE);
}

#[test]
fn what_is_not_a_trusted_file_is_refused() {
    let place = Place::new();
    let path = place.path();
    let clear = || drop(fs::remove_file(&path).or_else(|_| fs::remove_dir(&path)));

    place.open();
    let elsewhere = Place::new();
    fs::rename(&path, elsewhere.path()).unwrap();
    symlink(elsewhere.path(), &path).unwrap();
    assert_eq!(place.refusal(), ErrorKind::Foreign, "symbolic link");
    clear();
    symlink("/nonexistent/file", &path).unwrap();
    assert_eq!(place.refusal(), ErrorKind::Foreign, "dangling link");
    clear();
    fs::create_dir(&path).unwrap();
    assert_eq!(place.refusal(), ErrorKind::Foreign, "directory");
    clear();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    assert_eq!(place.refusal(), ErrorKind::Foreign, "FIFO, without waiting for its other end");
    clear();
    let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
    assert_eq!(place.refusal(), ErrorKind::Foreign, "socket");
    drop(socket);
    clear();
    for mode in [0o620, 0o602, 0o666] {
        place.open();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        assert_eq!(place.refusal(), ErrorKind::Foreign, "mode {mode:o}");
        clear();
    }
    place.open();
    fs::hard_link(&path, place.0.path().join("second")).unwrap();
    assert_eq!(place.refusal(), ErrorKind::Foreign, "two names");
    assert_eq!(
        Properties::open_path(Path::new("/dev/null")).unwrap_err().kind(),
        ErrorKind::Foreign,
        "device"
    );
    assert_eq!(Properties::open_path(Path::new("/")).unwrap_err().kind(), ErrorKind::Foreign, "no file name");
    assert!(Properties::open_path(Path::new("a\0b")).is_err());
}

#[test]
fn the_directory_matters() {
    let place = Place::new();
    let missing = Properties::open_path(&place.0.path().join("none/properties")).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Missing, "{missing}");
    fs::write(place.0.path().join("file"), "").unwrap();
    let file = Properties::open_path(&place.0.path().join("file/properties")).unwrap_err();
    assert_eq!(file.kind(), ErrorKind::Foreign, "{file}");
    fs::set_permissions(place.0.path(), Permissions::from_mode(0o777)).unwrap();
    assert_eq!(place.refusal(), ErrorKind::Foreign, "world-writable");
    fs::set_permissions(place.0.path(), Permissions::from_mode(0o1777)).unwrap();
    place.open().set("a", "1").unwrap();
}

#[test]
fn another_size_is_damage() {
    let place = Place::new();
    for size in [0, 1, 8, 16, 20, 63, 64, 65, 448, 4096, 8192, 24 * 4096, SIZE - 1, SIZE + 1, 1 << 30] {
        place.open().set("a", "1").unwrap();
        OpenOptions::new().write(true).open(place.path()).unwrap().set_len(size).unwrap();
        assert_eq!(place.refusal(), ErrorKind::Damaged, "{size} bytes");
        fs::remove_file(place.path()).unwrap();
    }
}

#[test]
fn a_wrong_header_is_damage() {
    let place = Place::new();
    let faults =
        [(0, 0u32), (4, 0), (4, 0x0250_4f52), (8, 0), (8, 255), (8, u32::MAX), (12, 257), (12, u32::MAX)];
    for (at, bytes) in faults {
        place.open().set("a", "1").unwrap();
        let file = OpenOptions::new().write(true).open(place.path()).unwrap();
        file.write_all_at(&bytes.to_ne_bytes(), at).unwrap();
        assert_eq!(place.refusal(), ErrorKind::Damaged, "{bytes:#x} at {at}");
        fs::remove_file(place.path()).unwrap();
    }
}

#[test]
fn damage_while_open_is_an_error_and_no_more() {
    let place = Place::new();
    let properties = place.open();
    properties.set("a", "1").unwrap();
    properties.set("b", "2").unwrap();
    let a = properties.find("a").unwrap();
    let file = OpenOptions::new().write(true).open(place.path()).unwrap();

    file.write_all_at(&[b'x'; 192], 64 + 192).unwrap();
    assert_eq!(properties.get("a").unwrap_err().kind(), ErrorKind::Damaged);
    assert_eq!(a.read(), None);
    assert_eq!(text(&properties, "b").as_deref(), Some("2"));
    let mut keys = Vec::new();
    assert_eq!(
        properties.for_each(|key, _, _| keys.push(key.to_owned())).unwrap_err().kind(),
        ErrorKind::Damaged
    );
    assert_eq!(keys, ["b"], "what is whole is passed on");
    properties.set("a", "3").unwrap();
    assert_eq!(text(&properties, "a").as_deref(), Some("3"), "setting repairs a value");

    file.write_all_at(&u32::MAX.to_ne_bytes(), 64 + 4).unwrap();
    assert_eq!(properties.get("a").unwrap_err().kind(), ErrorKind::Damaged);
    file.write_all_at(&u32::MAX.to_ne_bytes(), 12).unwrap();
    assert_eq!(properties.get("none").unwrap_err().kind(), ErrorKind::Damaged);
    assert_eq!(properties.set("b", "4").unwrap_err().kind(), ErrorKind::Damaged);
    assert_eq!(properties.check().unwrap_err().kind(), ErrorKind::Damaged);
    assert_eq!(text(&properties, "b").as_deref(), Some("2"), "what can still be found is");
}

/// A small generator of pseudorandom numbers. The numbers are the same in each run, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

#[test]
fn random_content_never_crashes() {
    let place = Place::new();
    {
        let properties = place.open();
        for number in 0..40 {
            properties.set(&format!("debug.key.{number}"), "x".repeat(number)).unwrap();
        }
    }
    let whole = fs::read(place.path()).unwrap();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut opened = 0;
    for round in 0..3000 {
        let mut bytes = whole.clone();
        match round % 4 {
            0 => bytes[..].fill_with(|| random.next() as u8),
            1 => bytes[12..].fill_with(|| random.next() as u8),
            2 => bytes[64..].fill_with(|| random.next() as u8),
            _ => {
                for _ in 0..=random.below(40) {
                    let at = 8 + random.below(SIZE.min(64 + 42 * 384) - 8) as usize;
                    bytes[at] = match random.below(4) {
                        0 => 0,
                        1 => 0xff,
                        _ => random.next() as u8,
                    };
                }
            }
        }
        File::options().write(true).open(place.path()).unwrap().write_all_at(&bytes, 0).unwrap();
        match Properties::open_path(&place.path()) {
            Ok(properties) => {
                opened += 1;
                for key in ["debug.key.0", "debug.key.39", "none"] {
                    let _ = properties.get(key);
                    if let Some(property) = properties.find(key) {
                        let _ = property.read();
                        let wait = Wait::Property(property);
                        let _ = properties.wait(wait, property.serial(), Some(Duration::ZERO)).unwrap();
                    }
                    if properties.set(key, "new").is_ok() {
                        assert_eq!(text(&properties, key).as_deref(), Some("new"));
                    }
                }
                let _ = properties.for_each(|key, value, _| {
                    assert!(!key.is_empty() && key.len() <= KEY_MAX && value.as_bytes().len() <= VALUE_MAX);
                });
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Damaged, "{error}"),
        }
    }
    assert!(opened > 500, "{opened} of 3000 got past the header");
}

#[test]
fn a_deleted_or_replaced_store_is_told() {
    let place = Place::new();
    let old = place.open();
    old.set("a", "old").unwrap();
    fs::remove_file(place.path()).unwrap();
    for refused in [old.set("a", "new"), old.check()] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Replaced);
    }
    let new = place.open();
    new.set("a", "new").unwrap();
    assert_eq!(old.check().unwrap_err().kind(), ErrorKind::Replaced);
    assert_eq!(text(&old, "a").as_deref(), Some("old"));
    assert_eq!(text(&new, "a").as_deref(), Some("new"));
    drop(new);
    fs::remove_dir_all(place.0.path()).unwrap();
    assert_eq!(old.check().unwrap_err().kind(), ErrorKind::Replaced, "with its directory");
}

#[test]
fn a_writer_that_stopped_is_named() {
    let place = Place::new();
    let properties = place.open();
    properties.set("a", "1").unwrap();
    let file = File::open(place.path()).unwrap();
    // SAFETY: an open descriptor.
    assert_eq!(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) }, 0);
    let start = Instant::now();
    let error = properties.set("a", "2").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    assert!(start.elapsed() < Duration::from_secs(30));
    assert_eq!(text(&properties, "a").as_deref(), Some("1"), "reading needs no lock");
    drop(file);
    properties.set("a", "2").unwrap();
}

#[test]
fn threads_set_and_read_whole_values() {
    let place = Place::new();
    let properties = place.open();
    properties.set("shared", "a").unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..8u8)
            .map(|thread| {
                let properties = &properties;
                scope.spawn(move || {
                    for round in 0..200usize {
                        let letter = char::from(b'a' + thread).to_string();
                        properties
                            .set("shared", letter.repeat(1 + (round * 7 + thread as usize) % 91))
                            .unwrap();
                        properties.set(&format!("own.{thread}"), round.to_string()).unwrap();
                        assert_eq!(text(properties, &format!("own.{thread}")), Some(round.to_string()));
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            scope.spawn(|| {
                let shared = properties.find("shared").unwrap();
                while !done.load(Ordering::Relaxed) {
                    let (_, value) = shared.read().unwrap();
                    let bytes = value.as_bytes();
                    assert!(!bytes.is_empty() && bytes.iter().all(|byte| *byte == bytes[0]), "{value:?}");
                }
            });
        }
        let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::Relaxed);
        assert!(results.iter().all(Result::is_ok));
    });
    let mut count = 0;
    properties.for_each(|_, _, _| count += 1).unwrap();
    assert_eq!(count, 9, "no property twice");
    assert_eq!(properties.area_serial(), 1 + 1 + 8 * 200 * 2, "no change lost");
}

#[test]
fn all_who_create_at_once_get_the_same_file() {
    for _ in 0..20 {
        let place = Place::new();
        let mut children: Vec<_> =
            (0..4).map(|_| start("inode", Some(&place.path())).spawn().unwrap()).collect();
        let inodes: Vec<_> = children.iter_mut().map(|child| expect(child, "INODE:")).collect();
        children.into_iter().for_each(finish);
        assert!(inodes.iter().all(|inode| *inode == inodes[0]), "{inodes:?}");
        assert_eq!(inodes[0], fs::metadata(place.path()).unwrap().ino().to_string());
        place.assert_tidy();
    }
    let place = Place::new();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let place = &place;
            scope.spawn(move || place.open().set(&format!("thread.{thread}"), "here").unwrap());
        }
    });
    let mut count = 0;
    place.open().for_each(|_, _, _| count += 1).unwrap();
    assert_eq!(count, 8);
    place.assert_tidy();
}

/// A helper process that never ends by itself. Dropping the `Endless` kills the process.
struct Endless(Child);

impl Endless {
    /// Stops the helper (`SIGSTOP`) at any point of its work.
    fn stop(&self) {
        let (id, mut status) = (libc::pid_t::try_from(self.0.id()).unwrap(), 0);
        // SAFETY: `id` is a child of this process that was not waited for.
        assert_eq!(unsafe { libc::kill(id, libc::SIGSTOP) }, 0);
        // SAFETY: `status` is writable.
        assert_eq!(unsafe { libc::waitpid(id, &mut status, libc::WUNTRACED) }, id);
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn nobody_waits_for_who_makes_a_store() {
    let place = Place::new();
    for round in 0..30 {
        let mut maker = Endless(start("make-forever", Some(&place.path())).spawn().unwrap());
        expect(&mut maker.0, "READY:");
        std::thread::sleep(Duration::from_micros(300 + 97 * round));
        maker.stop();
        let mut child = start("try", Some(&place.path())).spawn().unwrap();
        assert_eq!(expect(&mut child, "VALUE:"), "Ok(())", "round {round}");
        finish(child);
        drop(maker);
        // A process that is killed while it creates a store leaves no temporary file.
        place.assert_tidy();
    }
}

#[test]
fn trying_to_open_never_sleeps() {
    let Some(user) = UserStore::new(5) else { return };
    let place = Place::new();
    // The directory belongs to root, as in the moment between its creation by root and its transfer to the user.
    fs::create_dir(user.directory()).unwrap();
    fs::set_permissions(user.directory(), Permissions::from_mode(0o700)).unwrap();
    let mut child = user.start(&place, "try").spawn().unwrap();
    assert_eq!(expect(&mut child, "VALUE:"), "Err(Busy)");
    finish(child);
    chown(user.directory(), Some(user.0), Some(user.0)).unwrap();
    let mut child = user.start(&place, "try").spawn().unwrap();
    assert_eq!(expect(&mut child, "VALUE:"), "Ok(())");
    finish(child);
}

#[test]
fn transactions_are_one_step() {
    let place = Place::new();
    let properties = place.open();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let own = place.open();
                for _ in 0..100 {
                    let mut transaction = own.transaction(Duration::from_secs(60)).unwrap();
                    let count = transaction
                        .get("count")
                        .unwrap()
                        .map_or(0, |count| count.to_string_lossy().parse::<u32>().unwrap());
                    transaction.set("count", (count + 1).to_string()).unwrap();
                    transaction.set("copy", (count + 1).to_string()).unwrap();
                }
            });
        }
    });
    assert_eq!(text(&properties, "count").as_deref(), Some("800"));
    assert_eq!(text(&properties, "copy").as_deref(), Some("800"));

    let transaction = properties.transaction(PATIENCE).unwrap();
    assert!(transaction.is_alone());
    for patience in [Duration::ZERO, Duration::from_millis(20)] {
        let start = Instant::now();
        let error = properties.transaction(patience).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert!(error.to_string().contains("process"), "{error}");
        assert!(start.elapsed() >= patience);
    }
    drop(transaction);
    fs::remove_file(place.path()).unwrap();
    assert_eq!(properties.transaction(PATIENCE).unwrap_err().kind(), ErrorKind::Replaced);
}

#[test]
fn a_transaction_ends_with_its_process_and_not_with_its_child() {
    let place = Place::new();
    let properties = place.open();
    let mut holder = Endless(start("hold", Some(&place.path())).spawn().unwrap());
    expect(&mut holder.0, "READY:");
    assert_eq!(properties.transaction(Duration::ZERO).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(text(&properties, "a").as_deref(), Some("half"));
    drop(holder);
    properties.transaction(Duration::ZERO).unwrap().set("a", "whole").unwrap();
    assert_eq!(text(&properties, "a").as_deref(), Some("whole"));
    finish(start("fork", Some(&place.path())).spawn().unwrap());
}

#[test]
fn a_writer_killed_at_any_point_leaves_whole_values() {
    let place = Place::new();
    let properties = place.open();
    for round in 0..40 {
        let mut writer = start("write-forever", Some(&place.path())).spawn().unwrap();
        expect(&mut writer, "READY:");
        let end = Instant::now() + Duration::from_micros(500 + 397 * round);
        let look = || {
            let mut values = 0;
            properties
                .for_each(|key, value, _| {
                    let bytes = value.as_bytes();
                    assert_eq!(bytes.len(), VALUE_MAX, "{key} {value:?}");
                    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "{key} {value:?}");
                    values += 1;
                })
                .unwrap();
            assert!(values > 0);
        };
        while Instant::now() < end {
            look();
        }
        writer.kill().unwrap();
        assert_eq!(writer.wait().unwrap().signal(), Some(libc::SIGKILL));
        look();
        // The kernel released the lock when the writer was killed. A further change still changes the area serial and
        // the property's serial.
        let before = properties.area_serial();
        let serial = properties.find("key.0").map(|property| property.serial());
        properties.set("key.0", "z".repeat(VALUE_MAX)).unwrap();
        assert_ne!(properties.area_serial(), before);
        assert_ne!(properties.find("key.0").map(|property| property.serial()), serial);
    }
    place.assert_tidy();
}

/// The property store of a user id that only this test uses. Dropping the `UserStore` removes the store.
struct UserStore(u32);

impl UserStore {
    /// Chooses a user id that no process and no file has. Returns `None` if this process does not have root's rights.
    fn new(offset: u32) -> Option<Self> {
        let uid = 1_900_000_000 + offset * 10_000_000 + std::process::id();
        let probe = tempfile::NamedTempFile::new().unwrap();
        if chown(probe.path(), Some(uid), None).is_err() {
            // `eprintln!` is not used, because libtest hides its output.
            let _ = writeln!(std::io::stderr(), "skipped: only root can give files to others");
            return None;
        }
        Some(Self(uid))
    }

    fn path(&self) -> PathBuf {
        Properties::path_for_uid(self.0)
    }

    fn directory(&self) -> PathBuf {
        self.path().parent().unwrap().to_owned()
    }

    /// Returns the command that starts a helper with this user id, from a copy of this program that the user can read.
    fn start(&self, place: &Place, role: &str) -> Command {
        let program = place.0.path().join("program");
        if !program.exists() {
            // The command `cp` makes the copy. If this process copied the program, a child that another thread forks at
            // that time would have the program open for writing, and the program could not be executed.
            let copied =
                Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status().unwrap();
            assert!(copied.success());
            fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
            fs::set_permissions(place.0.path(), Permissions::from_mode(0o755)).unwrap();
        }
        let mut command = Command::new(program);
        command
            .args(["--exact", "helper", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env_remove(STORE);
        command.uid(self.0).gid(self.0).current_dir("/").stdout(Stdio::piped());
        command
    }
}

impl Drop for UserStore {
    fn drop(&mut self) {
        let directory = self.directory();
        let _ =
            if directory.is_symlink() { fs::remove_file(directory) } else { fs::remove_dir_all(directory) };
    }
}

#[test]
fn root_opens_the_store_of_another_user() {
    let Some(user) = UserStore::new(1) else { return };
    let place = Place::new();
    let properties = Properties::open_uid(user.0).unwrap();
    assert_eq!(properties.path(), user.path());
    for (path, mode) in [(user.directory(), 0o700), (user.path(), 0o600)] {
        let data = fs::metadata(path).unwrap();
        assert_eq!((data.uid(), data.mode() & 0o7777), (user.0, mode));
    }
    properties.set("from.root", "hello").unwrap();
    let mut child = user.start(&place, "get from.root").spawn().unwrap();
    assert_eq!(expect(&mut child, "VALUE:"), "hello");
    finish(child);
    finish(user.start(&place, "set from.user hi").spawn().unwrap());
    assert_eq!(text(&properties, "from.user").as_deref(), Some("hi"));
    let names: Vec<_> = fs::read_dir(user.directory()).unwrap().collect();
    assert_eq!(names.len(), 1);

    // Root can also open the store by its path, because the file of a store may belong to the owner of its directory.
    assert_eq!(text(&Properties::open_path(&user.path()).unwrap(), "from.user").as_deref(), Some("hi"));
}

#[test]
fn a_user_makes_their_own_store_and_root_joins() {
    let Some(user) = UserStore::new(2) else { return };
    let place = Place::new();
    let mut child = user.start(&place, "path").spawn().unwrap();
    assert_eq!(Path::new(&expect(&mut child, "PATH:")), user.path());
    finish(child);
    let properties = Properties::open_uid(user.0).unwrap();
    properties.set("a", "1").unwrap();
    let mut child = user.start(&place, "get a").spawn().unwrap();
    assert_eq!(expect(&mut child, "VALUE:"), "1");
    finish(child);

    // A process that has the store open notices that the store was deleted together with its directory.
    fs::remove_dir_all(user.directory()).unwrap();
    assert_eq!(properties.set("a", "2").unwrap_err().kind(), ErrorKind::Replaced);
}

#[test]
fn a_users_directory_must_be_theirs_and_closed() {
    let Some(user) = UserStore::new(3) else { return };
    let refusal = || Properties::open_uid(user.0).expect_err("the store was opened").kind();
    fs::create_dir(user.directory()).unwrap();

    chown(user.directory(), Some(user.0 + 1), None).unwrap();
    assert_eq!(refusal(), ErrorKind::Foreign, "someone else's");
    chown(user.directory(), Some(user.0), None).unwrap();
    fs::set_permissions(user.directory(), Permissions::from_mode(0o755)).unwrap();
    assert_eq!(refusal(), ErrorKind::Foreign, "open to others");

    // The directory belongs to root, as if root's process had been killed after it had created the directory and before
    // it had given the directory to the user.
    fs::set_permissions(user.directory(), Permissions::from_mode(0o700)).unwrap();
    chown(user.directory(), Some(0), None).unwrap();
    Properties::open_uid(user.0).unwrap();
    assert_eq!(fs::metadata(user.directory()).unwrap().uid(), user.0);

    chown(user.path(), Some(user.0 + 1), None).unwrap();
    assert_eq!(refusal(), ErrorKind::Foreign, "a file of someone else");
    chown(user.path(), Some(0), None).unwrap();
    assert_eq!(refusal(), ErrorKind::Foreign, "a file of root that others may be tricked with");

    fs::remove_dir_all(user.directory()).unwrap();
    let place = Place::new();
    symlink(place.0.path(), user.directory()).unwrap();
    assert_eq!(refusal(), ErrorKind::Foreign, "a symbolic link");
}

#[test]
fn a_file_of_someone_else_is_refused() {
    let Some(user) = UserStore::new(4) else { return };
    let place = Place::new();
    place.open();
    chown(place.path(), Some(user.0), None).unwrap();
    assert_eq!(place.refusal(), ErrorKind::Foreign);
    // A user may open neither a store of root nor the store of another user.
    chown(place.path(), Some(0), None).unwrap();
    let mut command = user.start(&place, "path");
    let failed = command.env(STORE, place.path()).stderr(Stdio::null()).spawn().unwrap().wait().unwrap();
    assert!(!failed.success());
    finish(user.start(&place, "open-other").spawn().unwrap());
}
