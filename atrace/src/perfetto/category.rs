//! Tags by the names that sessions choose them by: AOSP's short names, one a tag.
//!
//! Source: AOSP, `libs/tracing_perfetto`, and Perfetto's `track_event_config.proto`.

use atrace_sys::perfetto::proto::Reader;

/// The names, in the order of the tags' bits.
pub(super) const NAMES: [&str; 28] = [
    "always",
    "graphics",
    "input",
    "view",
    "webview",
    "wm",
    "am",
    "syncmanager",
    "audio",
    "video",
    "camera",
    "hal",
    "app",
    "res",
    "dalvik",
    "rs",
    "bionic",
    "power",
    "packagemanager",
    "ss",
    "database",
    "network",
    "adb",
    "vibrator",
    "aidl",
    "nnapi",
    "rro",
    "thermal",
];

/// The tags that a session wants, by its `DataSourceConfig`.
///
/// An exact name goes before a pattern (a name that ends in `*`), enabled before disabled. A category that is in neither
/// list is on where none are enabled by name: a session that says nothing wants all.
pub(super) fn wanted(config: &[u8]) -> u64 {
    const TRACK_EVENT_CONFIG: u32 = 113;
    let lists = Reader::first(config, TRACK_EVENT_CONFIG).map_or(&[][..], |lists| lists.bytes());
    let list = |field| {
        Reader::new(lists).filter(move |(number, _)| *number == field).map(|(_, value)| value.bytes())
    };
    let (disabled, enabled) = (|| list(1), || list(2));
    let by_default = enabled().next().is_none();
    let is_wanted = |name: &str| {
        let is_exact = |entry: &[u8]| entry == name.as_bytes();
        let matches =
            |entry: &[u8]| entry.strip_suffix(b"*").is_some_and(|prefix| name.as_bytes().starts_with(prefix));
        if enabled().any(is_exact) {
            true
        } else if disabled().any(is_exact) {
            false
        } else if enabled().any(matches) {
            true
        } else if disabled().any(matches) {
            false
        } else {
            by_default
        }
    };
    (0..).zip(NAMES).map(|(bit, name)| u64::from(is_wanted(name)) << bit).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AtraceTag;
    use atrace_sys::perfetto::proto::Writer;

    fn wanted_by(enabled: &[&str], disabled: &[&str]) -> AtraceTag {
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
        AtraceTag::from_bits_retain(wanted(writer.finish().unwrap()))
    }

    #[test]
    fn sessions_choose_tags_by_name() {
        let all = AtraceTag::ValidMask;
        assert_eq!(wanted(&[]), all.bits());
        assert_eq!(wanted_by(&[], &[]), all);
        assert_eq!(wanted_by(&["app", "view"], &[]), AtraceTag::App | AtraceTag::View);
        assert_eq!(wanted_by(&["app"], &["*"]), AtraceTag::App);
        assert_eq!(wanted_by(&["*"], &["app"]), all - AtraceTag::App);
        assert_eq!(wanted_by(&[], &["app"]), all - AtraceTag::App);
        assert_eq!(wanted_by(&["a*"], &["am", "adb"]), {
            AtraceTag::Always | AtraceTag::Audio | AtraceTag::App | AtraceTag::Aidl
        });
        assert_eq!(wanted_by(&["nothing"], &[]), AtraceTag::Never);
    }

    #[test]
    fn every_tag_has_its_name() {
        let of = |tag: AtraceTag| NAMES[tag.bits().trailing_zeros() as usize];
        assert_eq!(of(AtraceTag::Always), "always");
        assert_eq!(of(AtraceTag::SyncManager), "syncmanager");
        assert_eq!(of(AtraceTag::App), "app");
        assert_eq!(of(AtraceTag::SystemServer), "ss");
        assert_eq!(of(AtraceTag::Aidl), "aidl");
        assert_eq!(of(AtraceTag::Last), "thermal");
    }
}
