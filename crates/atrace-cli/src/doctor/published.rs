//! Parses the state that a process publishes: lines of a key and a value.

use std::collections::HashMap;

/// The lines of a state; [`atrace::state`] lists the keys.
#[derive(Clone, Debug, Default)]
pub(super) struct Published {
    fields: HashMap<String, String>,
    /// The functions that the library does not have.
    pub(super) lacks: Vec<String>,
}

impl Published {
    pub(super) fn parse(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let lines = || text.lines().filter_map(|line| line.split_once(' '));
        let lacks = lines().filter(|(key, _)| *key == "lacks").map(|(_, value)| value.to_owned()).collect();
        let fields = lines().map(|(key, value)| (key.to_owned(), with_text(value))).collect();
        Self { fields, lacks }
    }

    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.fields.get(key).map(String::as_str)
    }

    pub(super) fn number(&self, key: &str) -> Option<u64> {
        let text = self.get(key)?;
        match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        }
    }

    /// Returns the number of sessions of Perfetto's service that the process takes part in, from the text of its
    /// connection state.
    pub(super) fn sessions(&self) -> u64 {
        let text = self.get("perfetto").and_then(|standing| standing.split_once(": connected, "));
        let number = text.and_then(|(_, rest)| rest.split_once(" sessions"));
        number.and_then(|(number, _)| number.parse().ok()).unwrap_or(0)
    }

    /// Returns the number of the marker's descriptor, and the device and inode of its file.
    pub(super) fn marker(&self) -> Option<(u32, (u64, u64))> {
        let mut parts = self.get("marker")?.split(':');
        let fd = parts.next()?.parse().ok()?;
        let identity = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some((fd, identity))
    }
}

/// Returns the value with an error at its end (`errno N`) replaced by the system's text for it.
fn with_text(value: &str) -> String {
    let parts = value.rsplit_once("errno ").and_then(|(before, code)| Some((before, code.parse().ok()?)));
    parts.map_or(value.to_owned(), |(before, code)| {
        format!("{before}{}", std::io::Error::from_raw_os_error(code))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_system_has_its_text() {
        let refused = std::io::Error::from_raw_os_error(111);
        let of = |text: &[u8]| Published::parse(text).get("perfetto").unwrap().to_owned();
        assert_eq!(of(b"perfetto nobody to talk to: errno 111\n"), format!("nobody to talk to: {refused}"));
        assert_eq!(of(b"perfetto connected\n"), "connected");
    }
}
