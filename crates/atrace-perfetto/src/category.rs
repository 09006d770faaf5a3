//! Categories: for Perfetto, each tag is a category. Its name is the one that AOSP's `libs/tracing_perfetto` uses for
//! the tag. Sessions choose tags by these names.
//!
//! Source: AOSP, `libs/tracing_perfetto`, and Perfetto's `track_event_config.proto`.

use crate::proto::Reader;

use crate::names::Names;

/// The names of the tags, in the order of the tags' bits.
const NAMES: Names = Names(
    "always graphics input view webview wm am syncmanager audio video camera hal app res dalvik rs bionic power \
    packagemanager ss database network adb vibrator aidl nnapi rro thermal",
    b' ',
);
/// The number of categories.
pub const COUNT: u32 = 28;
/// The bits of all categories.
pub(crate) const ALL: u64 = (1 << COUNT) - 1;
/// The field of a `DataSourceConfig` that configures track events.
pub(crate) const TRACK_EVENT_CONFIG: u32 = 113;

/// Returns the name of the tag with this bit, or an empty text if there is no such tag.
pub fn name(bit: u32) -> &'static str {
    NAMES.at(bit as usize)
}

/// Returns the tags that a session wants, from its `DataSourceConfig`.
///
/// The rules are those of Perfetto's C++ SDK. For each category, the first entry that matches its name decides. There
/// are three kinds of entries, which are tried in this order: an exact name; a prefix, which ends at the entry's first
/// `*`; and an entry with a `*` at its start. Within a kind, "enabled" entries are tried before "disabled" entries. If
/// no entry matches a category, the session wants it.
pub(crate) fn wanted(config: &[u8]) -> u64 {
    const DISABLED: u32 = 1;
    const ENABLED: u32 = 2;
    let lists = Reader::first(config, TRACK_EVENT_CONFIG).map_or(&[][..], |lists| lists.bytes());
    let is_wanted = |name: &str| {
        // The highest rank among the entries that match the name. An odd rank disables the category. 0 means that no
        // entry matches.
        let mut highest = 0;
        for (field, entry) in Reader::new(lists).filter(|(field, _)| matches!(*field, DISABLED | ENABLED)) {
            let entry = entry.bytes();
            let exactness = match entry.iter().position(|byte| *byte == b'*') {
                None if entry == name.as_bytes() => 2,
                Some(0) => 0,
                Some(star) if name.as_bytes().starts_with(&entry[..star]) => 1,
                _ => continue,
            };
            highest = highest.max(1 + u8::from(field == ENABLED) + 2 * exactness);
        }
        highest % 2 == 0
    };
    (0..COUNT).map(|bit| u64::from(is_wanted(name(bit))) << bit).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Writer;

    fn wanted_by(enabled: &[&str], disabled: &[&str]) -> u64 {
        let mut bytes = [0; 256];
        let mut writer = Writer::new(&mut bytes);
        writer.number(2, 3).message(113, |lists| {
            for name in disabled {
                lists.bytes(1, name.as_bytes());
            }
            for name in enabled {
                lists.bytes(2, name.as_bytes());
            }
        });
        wanted(writer.finish().unwrap())
    }

    /// Returns the bits of the tags with these names.
    fn of(names: &[&str]) -> u64 {
        names.iter().map(|name| 1 << NAMES.place(name.as_bytes()).unwrap()).sum()
    }

    #[test]
    fn sessions_choose_tags_by_name() {
        let a = of(&["always", "am", "audio", "app", "adb", "aidl"]);
        // `crates/real-service/tests/options.rs` compares the same cases with the SDK.
        let cases: [(&[&str], &[&str], u64); 14] = [
            (&[], &[], ALL),
            (&["app", "view"], &[], ALL),
            (&["app"], &["*"], of(&["app"])),
            (&["*"], &["app"], ALL - of(&["app"])),
            (&["*"], &["a*"], ALL - a),
            (&["*"], &["*"], ALL),
            (&["app"], &["app"], ALL),
            (&["a*"], &["a*"], ALL),
            (&["app"], &["a*"], ALL - a + of(&["app"])),
            (&[], &["app"], ALL - of(&["app"])),
            (&[], &["a*p"], ALL - a),
            (&["a*p"], &["*"], a),
            (&["a*p", "*p"], &["am", "*"], ALL - of(&["am"])),
            (&["nothing"], &["*"], 0),
        ];
        assert_eq!(wanted(&[]), ALL);
        for (enabled, disabled, expected) in cases {
            assert_eq!(wanted_by(enabled, disabled), expected, "{enabled:?} {disabled:?}");
        }
    }
}
