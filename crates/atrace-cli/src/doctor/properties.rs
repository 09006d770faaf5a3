//! Checks whether the properties switch a process on, and whether the process has read them.

use std::ffi::CString;
use std::io;
use std::time::Duration;

use atrace_sys::process;
use atrace_sys::properties::VALUE_MAX;

use super::Patient;
use super::facts::Presence;
use super::published::Published;
use super::report::{Level, Report, Topic};
use crate::escape::{quoted, shown};
use atrace::AtraceTag;
use atrace::control::{FLAGS, parse_flags, pattern_for};

impl Patient {
    /// Reports whether the properties switch the process on.
    pub(super) fn properties(&self, report: &mut Report) {
        let store = &self.facts.store;
        let Some(path) = &store.path else { return };
        let path = shown(path);
        if store.is_stale && !self.is_new {
            report.bad(
                Topic::Properties,
                format!(
                    "{path} was deleted or replaced since the process opened it, which follows the old one"
                ),
                "start the process again",
            );
        }
        let absent = match store.presence {
            Presence::There => None,
            Presence::Absent => Some("is not there yet: it is made when first needed"),
            Presence::Hidden => Some("may not be looked at"),
        };
        if let Some(why) = absent {
            return report.note(Topic::Properties, format!("{path} {why}"));
        }
        if let Some(fault) = &store.fault {
            // Already reported as the reason why events go nowhere.
            if !report.wrong().any(|it| it.topic == Topic::Properties) {
                let mend = format!("remove {path} when no program uses it, and start those again");
                report.bad(Topic::Properties, shown(fault).to_string(), mend);
            }
            return;
        }
        if !store.is_stale || self.is_new {
            report.good(Topic::Properties, path.to_string());
        }
        let is_number = store.flags.is_empty() || parse_flags(&store.flags).is_some();
        let flags_text = shown(&store.flags);
        if is_number {
            let names: Vec<_> = self.tags().iter_names().map(|(name, _)| name).collect();
            let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            report.good(Topic::Tags, format!("{} is \"{flags_text}\": {names}, beside App", FLAGS));
        } else {
            report.bad(
                Topic::Tags,
                format!("{} is no number, which switches everything off: \"{flags_text}\"", FLAGS),
                "atrace on PATTERN",
            );
        }
        self.pattern(report);
    }

    fn tags(&self) -> AtraceTag {
        AtraceTag::from_bits_retain(parse_flags(&self.facts.store.flags).unwrap_or(0)) & AtraceTag::ValidMask
    }

    fn pattern(&self, report: &mut Report) {
        let patterns = &self.facts.store.patterns;
        let listed = if patterns.is_empty() {
            "none is on".to_owned()
        } else {
            let all: Vec<_> = patterns.iter().map(|pattern| shown(pattern).to_string()).collect();
            format!("on are {}", all.join(", "))
        };
        let others = !self.tags().is_empty();
        let Some(name) = &self.facts.name else {
            if patterns.is_empty() && !others {
                report.bad(
                    Topic::Pattern,
                    "no pattern and no tag is on, so no program traces",
                    "atrace on PATTERN",
                );
            } else {
                report.good(Topic::Pattern, listed);
            }
            return;
        };
        let is_meant = |pattern: &&Vec<u8>| {
            let texts = CString::new(pattern.as_slice()).ok().zip(CString::new(name.as_slice()).ok());
            texts.is_some_and(|(pattern, name)| process::matches(&pattern, &name))
        };
        let length = name.len();
        let mend = format!("atrace on {}", in_quotes(&pattern_for(name)));
        let name = shown(name);
        if let Some(pattern) = patterns.iter().find(is_meant) {
            report.good(Topic::Pattern, format!("{} matches its name, {name}", shown(pattern)));
        } else if length > VALUE_MAX {
            report.bad(
                Topic::Name,
                format!("its name has {length} bytes and a pattern at most {VALUE_MAX}, so only '*' and its end can match; {listed}; {name}"),
                mend,
            );
        } else {
            let text = format!("no pattern matches its name, {name}; {listed}");
            if others {
                report.add(Topic::Pattern, Level::Note, text + "; other tags than App are").mend = Some(mend);
            } else {
                report.bad(Topic::Pattern, text, mend);
            }
        }
    }

    /// Reports whether the process knows the current values of the properties.
    pub(super) fn follows(&mut self, published: &Published, report: &mut Report) {
        let tags = AtraceTag::from_bits_retain(published.number("tags").unwrap_or(0));
        if tags.contains(AtraceTag::NotReady) {
            report.bad(
                Topic::Disabled,
                "the program disabled tracing for itself",
                "have it call atrace_set_tracing_enabled(true)",
            );
        }
        let filters = published.number("filters").unwrap_or(0);
        // A thread that was just started sets its name a little later.
        for _ in 0..20 {
            if self.facts.has_watch || filters == 0 {
                break;
            }
            self.look_again(Duration::from_millis(10));
        }
        if filters > 0 && !self.facts.has_watch {
            report.bad(
                Topic::Filter,
                "its subscriber keeps what it was told of the tags, and no thread tells it: it was forked",
                "have the child call atrace_subscriber::after_fork()",
            );
        } else if filters > 0 {
            report.good(Topic::Filter, "a thread tells its subscriber when the tags change");
        }
        if !self.is_new {
            self.serial(filters > 0 && self.facts.has_watch, report);
        }
        if let Some((count, code)) = published.get("dropped").and_then(|text| text.split_once(' ')) {
            let error = code.parse().map_or(io::Error::other("?"), io::Error::from_raw_os_error);
            report.note(
                Topic::Lost,
                format!("at least {count} events could not be written; the last time: {error}"),
            );
        }
    }

    fn serial(&mut self, is_watched: bool, report: &mut Report) {
        let Some(serial) = self.facts.store.serial else { return };
        let is_noticed = |patient: &Self| {
            patient.published().is_some_and(|published| published.number("serial") == Some(serial.into()))
        };
        let mut is_known = is_noticed(self);
        if !is_known && is_watched {
            // The watch may be about to read them.
            self.look_again(Duration::from_millis(200));
            is_known = is_noticed(self);
        }
        if is_known {
            report.good(Topic::Serial, "it has read the properties since they changed");
        } else if is_watched {
            report.bad(
                Topic::Serial,
                "its watch has not read the properties since they changed",
                format!("kill -CONT {}; else start it again", self.pid),
            );
        } else {
            report.note(
                Topic::Serial,
                "it has not read the properties since they changed: its next event does",
            );
        }
    }
}

/// Quotes a text as one word of a shell, even if the word needs no quotes.
fn in_quotes(text: &[u8]) -> String {
    match quoted(text) {
        word if word.starts_with(['\'', '$']) => word,
        word => format!("'{word}'"),
    }
}
