//! Opens a damaged property store. Whatever the file contains, every read returns, and a property has its new value
//! after a set that reported success.

#![no_main]

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use arbitrary::Arbitrary;
use atrace::AtraceTag;
use atrace::control::{Control, Properties};
use atrace_sys::properties::{KEY_MAX, PATIENCE, VALUE_MAX, Wait};
use libfuzzer_sys::fuzz_target;

const KEYS: [&str; 5] =
    ["debug.atrace.tags.enableflags", "debug.atrace.app_number", "debug.atrace.app_0", "debug.atrace.app_1", "a"];

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    /// The bytes that are written over a valid store, each with its offset. If the flag is true, the offset may be
    /// anywhere in the file; otherwise it is in the header or the first entries.
    writings: Vec<(bool, u32, &'a [u8])>,
    /// The size to which the file is set, which may be shorter or longer than a valid store.
    size: Option<u32>,
    value: &'a [u8],
    pattern: &'a str,
}

/// The path of a store in a directory that only this process uses, and the bytes of a valid store.
static WHOLE: LazyLock<(PathBuf, Vec<u8>)> = LazyLock::new(|| {
    let directory = std::env::temp_dir().join(format!("atrace-fuzz-{}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir(&directory).unwrap();
    let path = directory.join("properties");
    let store = Properties::open_path(&path).unwrap();
    for (key, value) in KEYS.into_iter().zip(["0x402", "2", "one", "*two", "b"]) {
        store.set(key, value).unwrap();
    }
    let bytes = fs::read(&path).unwrap();
    (path, bytes)
});

fuzz_target!(|input: Input<'_>| {
    let (path, whole) = &*WHOLE;
    let _ = fs::remove_file(path);
    drop(Properties::open_path(path).unwrap());
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(whole, 0).unwrap();
    for (anywhere, at, bytes) in input.writings {
        let room = if anywhere { whole.len() } else { 64 + KEYS.len() * 384 };
        let at = at as usize % room;
        let length = bytes.len().min(whole.len() - at);
        file.write_all_at(&bytes[..length], at as u64).unwrap();
    }
    if let Some(size) = input.size {
        file.set_len(u64::from(size) % 200_000).unwrap();
    }
    let open = || Properties::open_path(path);
    let (Ok(store), Ok(control)) = (open(), open().map(Control::from)) else { return };
    assert_eq!(fs::metadata(path).unwrap().len(), whole.len() as u64);

    let _ = store.for_each(|key, value, _| {
        assert!(!key.is_empty() && key.len() <= KEY_MAX && value.as_bytes().len() <= VALUE_MAX);
    });
    let _ = (store.check(), store.area_serial(), store.api_level());
    for key in KEYS {
        let _ = store.get(key);
        if let Some(property) = store.find(key) {
            let _ = property.read();
            let wait = Wait::Property(property);
            store.wait(wait, property.serial(), Some(Duration::ZERO)).unwrap();
        }
        if store.set(key, input.value).is_ok() {
            assert_eq!(store.get(key).unwrap().unwrap().as_bytes(), input.value);
        }
    }
    let _ = (control.patterns(), control.tags());
    if let Ok(switched) = control.enable(input.pattern) {
        assert!(control.patterns().iter().any(|pattern| pattern == input.pattern.as_bytes()));
        let _ = switched.restore();
    }
    if let Ok(switched) = control.enable(AtraceTag::Camera) {
        assert!(control.tags().contains(AtraceTag::Camera));
        switched.keep();
    }
    let _ = control.disable(input.pattern).map(|switched| switched.keep());
    drop(store.transaction(PATIENCE).unwrap());
});
