//! Tags by the names that sessions choose them by: AOSP's short names, one a tag.
//!
//! Source: AOSP, `libs/tracing_perfetto`, and Perfetto's `track_event_config.proto`.

use crate::proto::Reader;

use crate::words::Words;

/// The names, in the order of the tags' bits.
const NAMES: Words = Words::new(
    "always graphics input view webview wm am syncmanager audio video camera hal app res dalvik rs bionic power \
    packagemanager ss database network adb vibrator aidl nnapi rro thermal",
);
/// How many there are.
pub const COUNT: u32 = 28;
/// The bits of all of them.
pub(crate) const ALL: u64 = (1 << COUNT) - 1;

/// The name of the tag that has this bit; an empty one where there is none.
pub fn name(bit: u32) -> &'static str {
    NAMES.at(bit as usize)
}

/// The tags that a session wants, by its `DataSourceConfig`.
///
/// An exact name goes before a pattern (a name that ends in `*`), enabled before disabled. A category that is in neither
/// list is on where none are enabled by name: a session that says nothing wants all.
pub(crate) fn wanted(config: &[u8]) -> u64 {
    const TRACK_EVENT_CONFIG: u32 = 113;
    const DISABLED: u32 = 1;
    const ENABLED: u32 = 2;
    let lists = Reader::first(config, TRACK_EVENT_CONFIG).map_or(&[][..], |lists| lists.bytes());
    let by_default = Reader::first(lists, ENABLED).is_none();
    let is_wanted = |name: &str| {
        // Of the entries that match, the one of the highest rank; the odd ones disable. 0: there is none.
        let mut highest = 0;
        for (field, entry) in Reader::new(lists).filter(|(field, _)| matches!(*field, DISABLED | ENABLED)) {
            let prefix = entry.bytes().strip_suffix(b"*");
            let is_match =
                prefix.map_or(entry.bytes() == name.as_bytes(), |prefix| name.as_bytes().starts_with(prefix));
            if is_match {
                highest = highest.max(1 + u8::from(field == ENABLED) + 2 * u8::from(prefix.is_none()));
            }
        }
        if highest == 0 { by_default } else { highest % 2 == 0 }
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

    /// The bits of the tags with these names.
    fn of(names: &[&str]) -> u64 {
        names.iter().map(|name| 1 << NAMES.place(name.as_bytes()).unwrap()).sum()
    }

    #[test]
    fn sessions_choose_tags_by_name() {
        assert_eq!(wanted(&[]), ALL);
        assert_eq!(wanted_by(&[], &[]), ALL);
        assert_eq!(wanted_by(&["app", "view"], &[]), of(&["app", "view"]));
        assert_eq!(wanted_by(&["app"], &["*"]), of(&["app"]));
        assert_eq!(wanted_by(&["*"], &["app"]), ALL - of(&["app"]));
        assert_eq!(wanted_by(&[], &["app"]), ALL - of(&["app"]));
        assert_eq!(wanted_by(&["a*"], &["am", "adb"]), of(&["always", "audio", "app", "aidl"]));
        assert_eq!(wanted_by(&["nothing"], &[]), 0);
    }
}
