//! The properties of a device: what they say of it, and which it had before.

use std::collections::BTreeMap;

use super::adb::quote;

/// What the names of those that switch tracing begin with.
const PREFIX: &str = "debug.atrace.";
/// libcutils looks at this one alone to see whether something changed.
pub(crate) const FLAGS: &str = "debug.atrace.tags.enableflags";
const APP_NUMBER: &str = "debug.atrace.app_number";

/// All properties, or some.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Properties(BTreeMap<String, String>);

impl Properties {
    /// Reads what `getprop` says.
    pub(crate) fn parse(text: &str) -> Self {
        let read = |line: &str| {
            let (key, value) = line.trim_end().strip_prefix('[')?.strip_suffix(']')?.split_once("]: [")?;
            Some((key.to_owned(), value.to_owned()))
        };
        Self(text.lines().filter_map(read).collect())
    }

    /// Returns a value, empty where it is not set.
    pub(crate) fn get(&self, key: &str) -> &str {
        self.0.get(key).map_or("", |value| value)
    }

    /// Keeps those that switch tracing.
    pub(crate) fn switches(mut self) -> Self {
        self.0.retain(|key, _| key.starts_with(PREFIX));
        self
    }

    /// Returns a script that makes of the switches `now` these again; `None` if they are the same. A property
    /// can't be removed, and empty is as good.
    pub(crate) fn restore(&self, now: &Self) -> Option<String> {
        let keys = self.0.keys().chain(now.0.keys());
        let mut changed: Vec<_> = keys.filter(|key| self.get(key) != now.get(key)).collect();
        if changed.is_empty() {
            return None;
        }
        // Who follows them looks again when the flags are set: they come last, even if they are the same.
        let flags = FLAGS.to_owned();
        changed.push(&flags);
        let rank = |key: &str| (key == FLAGS, key == APP_NUMBER);
        changed.sort_by(|a, b| rank(a).cmp(&rank(b)).then(a.cmp(b)));
        changed.dedup();
        Some(changed.into_iter().map(|key| set(key, self.get(key))).collect::<Vec<_>>().join("; "))
    }
}

/// Returns the command that sets a property.
pub(crate) fn set(key: &str, value: &str) -> String {
    format!("setprop {} {}", quote(key), quote(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn getprop_is_read() {
        let text = "[ro.product.model]: [Pixel [6]]\r\n[debug.atrace.app_0]: []\n[a]: [b\nbroken\n";
        let all = Properties::parse(text);
        assert_eq!((all.get("ro.product.model"), all.get("a")), ("Pixel [6]", ""));
        assert_eq!(all.clone().switches().0.len(), 1);
        assert_eq!(all.switches().get("ro.product.model"), "");
    }

    #[test]
    fn switches_are_restored_in_the_order_that_reaches_everyone() {
        let of = |text: &str| Properties::parse(text).switches();
        let before = of("[debug.atrace.tags.enableflags]: [0x2]\n[debug.atrace.app_0]: [it's]\n\
             [debug.atrace.app_number]: [1]");
        let now = of(
            "[debug.atrace.tags.enableflags]: [0x2]\n[debug.atrace.app_0]: [*b]\n[debug.atrace.app_1]: [c]\n\
                      [debug.atrace.app_number]: [2]",
        );
        assert_eq!(
            before.restore(&now).unwrap(),
            r"setprop 'debug.atrace.app_0' 'it'\''s'; setprop 'debug.atrace.app_1' ''; \
              setprop 'debug.atrace.app_number' '1'; setprop 'debug.atrace.tags.enableflags' '0x2'"
                .replace("\\\n              ", "")
        );
        assert_eq!(now.restore(&now), None);
        assert_eq!(before.restore(&of("")).unwrap().matches("setprop").count(), 3);
    }
}
