//! What is kept of the device with the results.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::properties::Properties;
use crate::row::environment;

/// The script whose output [`Record::new`] reads.
pub(crate) const SCRIPT: &str = "echo kernel=$(uname -r)\n\
    for policy in /sys/devices/system/cpu/cpufreq/policy*; do\n\
    if [ -r $policy/scaling_governor ]; then echo ${policy##*/}=$(cat $policy/scaling_governor); fi\n\
    done";

/// The content of `device.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// What it is sold as.
    pub(crate) model: String,
    /// What its makers call it.
    pub(crate) device: String,
    pub(crate) serial: String,
    /// The version of Android, as programs see it.
    pub(crate) api_level: Option<u32>,
    pub(crate) kernel: String,
    /// That the benches were built for.
    pub(crate) abi: String,
    /// The build of Android.
    pub(crate) fingerprint: String,
    /// What decides on the clock of each group of CPUs.
    pub(crate) governors: BTreeMap<String, String>,
    /// The commit of the sources that the benches were built from.
    #[serde(default)]
    pub(crate) commit: String,
    /// Whether the benches ran as root, or else as the shell.
    pub(crate) root: bool,
    /// Whether they took less time.
    pub(crate) quick: bool,
    /// The benches, and whether they succeeded.
    pub(crate) benches: BTreeMap<String, bool>,
}

impl Record {
    /// Describes a device by its properties and by what [`SCRIPT`] says.
    pub(crate) fn new(serial: &str, properties: &Properties, said: &str) -> Self {
        let get = |key| properties.get(key).to_owned();
        let mut governors: BTreeMap<_, _> = said
            .lines()
            .filter_map(|line| line.trim().split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        Self {
            model: get("ro.product.model"),
            device: get("ro.product.device"),
            serial: serial.to_owned(),
            api_level: get("ro.build.version.sdk").parse().ok(),
            kernel: governors.remove("kernel").unwrap_or_default(),
            abi: get("ro.product.cpu.abi"),
            fingerprint: get("ro.build.fingerprint"),
            governors,
            commit: environment::commit(),
            ..Self::default()
        }
    }

    /// Returns the name of the directory for its results.
    pub(crate) fn directory(&self) -> String {
        let name = if self.model.is_empty() {
            self.serial.clone()
        } else {
            format!("{}-{}", self.model, self.serial)
        };
        let safe = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
        name.chars().map(safe).collect::<String>().trim_start_matches('.').to_owned()
    }

    /// Says in one line what it is.
    pub(crate) fn line(&self) -> String {
        let Self { model, device, serial, abi, kernel, .. } = self;
        let api = self.api_level.map_or("?".to_owned(), |level| level.to_string());
        let mut governors: Vec<_> = self.governors.values().map(|value| &value[..]).collect();
        governors.dedup();
        let governors = if governors.is_empty() { "unknown".to_owned() } else { governors.join(", ") };
        format!("{serial}, {model} ({device}), API level {api}, {abi}, kernel {kernel}, governor {governors}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_described() {
        let properties = Properties::parse(
            "[ro.product.model]: [Pixel 6]\n[ro.product.device]: [oriole]\n[ro.build.version.sdk]: [34]\n\
             [ro.product.cpu.abi]: [arm64-v8a]\n[ro.build.fingerprint]: [google/oriole:14/1:user/keys]",
        );
        let said = "kernel=5.10.157-android13\npolicy0=schedutil\npolicy4=schedutil\npolicy6=performance\n";
        let record = Record::new("192.168.1.9:5555", &properties, said);
        assert_eq!(record.directory(), "Pixel_6-192.168.1.9_5555");
        assert_eq!(
            record.line(),
            "192.168.1.9:5555, Pixel 6 (oriole), API level 34, arm64-v8a, kernel 5.10.157-android13, \
             governor schedutil, performance"
        );
        assert_eq!(record.governors["policy6"], "performance");
        let none = Record::new("../x", &Properties::default(), "");
        assert_eq!((&none.directory()[..], none.api_level), ("_x", None));
    }
}
