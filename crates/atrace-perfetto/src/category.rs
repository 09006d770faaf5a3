//! Categories: each tag has one, with AOSP's short name. Sessions choose tags by these names.
//!
//! Source: AOSP, `libs/tracing_perfetto`, and Perfetto's `track_event_config.proto`.

use crate::proto::Reader;

use crate::names::Names;

/// The names, in the order of the tags' bits.
const NAMES: Names = Names(
    "always graphics input view webview wm am syncmanager audio video camera hal app res dalvik rs bionic power \
    packagemanager ss database network adb vibrator aidl nnapi rro thermal",
    b' ',
);
/// The number of categories.
pub const COUNT: u32 = 28;
/// The bits of all categories.
pub(crate) const ALL: u64 = (1 << COUNT) - 1;

/// Returns the name of the tag with this bit; an empty text if there is no such tag.
pub fn name(bit: u32) -> &'static str {
    NAMES.at(bit as usize)
}

/// Returns the tags that a session wants, from its `DataSourceConfig`.
///
/// An exact name has priority over a pattern (a name that ends in `*`), and "enabled" over "disabled". A category in
/// neither list is on only if the session enables none by name: a session without lists wants all.
pub(crate) fn wanted(config: &[u8]) -> u64 {
    const TRACK_EVENT_CONFIG: u32 = 113;
    const DISABLED: u32 = 1;
    const ENABLED: u32 = 2;
    let lists = Reader::first(config, TRACK_EVENT_CONFIG).map_or(&[][..], |lists| lists.bytes());
    let by_default = Reader::first(lists, ENABLED).is_none();
    let is_wanted = |name: &str| {
        // The highest rank of all matching entries. Odd ranks disable; 0: no entry matches.
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

    /// Returns the bits of the tags with these names.
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
