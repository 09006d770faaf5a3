//! Checks whether the properties enable tracing in a process, and whether the process has read the properties.

use std::io;
use std::time::Duration;

use atrace_sys::properties::{FLAGS, VALUE_MAX, Value, pattern_for};

use super::Patient;
use super::facts::Published;
use super::report::{Level, Report, Topic};
use crate::escape::{quoted, shown};
use crate::process::matches;
use atrace::AtraceTag;

/// Parses the mask of enabled tags.
fn mask(text: &[u8]) -> Option<u64> {
    Value::new(text).ok()?.mask()
}

impl Patient {
    /// Reports whether the properties enable tracing in the process.
    pub(super) fn properties(&self, report: &mut Report) {
        let facts = &self.facts;
        let Some(path) = facts.get("store").map(shown) else { return };
        let is_stale = facts.is("is_stale") && !self.is_new;
        if is_stale {
            let text = format!(
                "{path} was deleted or replaced since the process opened it, which follows the old one"
            );
            report.bad(Topic::Properties, text, "start the process again");
        }
        if facts.is("is_hidden") {
            return report.note(Topic::Properties, format!("{path} may not be read"));
        }
        if !facts.is("is_there") {
            let text = format!("{path} is not there yet: it is made when first needed");
            return report.note(Topic::Properties, text);
        }
        if let Some(fault) = facts.get("fault") {
            // The fault may already be reported as the reason why events go nowhere.
            if !report.wrong().any(|it| it.topic == Topic::Properties) {
                let mend = format!("remove {path} when no program uses it, and start those again");
                report.bad(Topic::Properties, shown(fault).to_string(), mend);
            }
            return;
        }
        if !is_stale {
            report.good(Topic::Properties, path.to_string());
        }
        let flags = facts.get("flags").unwrap_or_default();
        let text = shown(flags);
        if flags.is_empty() || mask(flags).is_some() {
            let names = tag_names(self.tags());
            report.good(Topic::Tags, format!("{FLAGS} is \"{text}\": {names}, beside App"));
        } else {
            let text = format!("{FLAGS} is no number, which switches everything off: \"{text}\"");
            report.bad(Topic::Tags, text, "atrace on PATTERN");
        }
        self.pattern(report);
    }

    fn tags(&self) -> AtraceTag {
        let flags = self.facts.get("flags").and_then(mask).unwrap_or(0);
        AtraceTag::from_bits_retain(flags) & AtraceTag::ValidMask
    }

    fn pattern(&self, report: &mut Report) {
        let patterns: Vec<_> = self.facts.all("pattern").collect();
        let shown_patterns: Vec<_> = patterns.iter().map(|pattern| shown(*pattern).to_string()).collect();
        let listed = match shown_patterns.join(", ") {
            _ if patterns.is_empty() => "none is on".to_owned(),
            all => format!("on are {all}"),
        };
        let others = !self.tags().is_empty();
        let Some(name) = &self.name else {
            if patterns.is_empty() && !others {
                let text = "no pattern and no tag is on, so no program traces";
                report.bad(Topic::Pattern, text, "atrace on PATTERN");
            } else {
                report.good(Topic::Pattern, listed);
            }
            return;
        };
        let is_meant = |pattern: &&&[u8]| matches(pattern, name);
        let length = name.len();
        let mend = format!("atrace on {}", in_quotes(&pattern_for(name)));
        let name = shown(name);
        if let Some(pattern) = patterns.iter().find(is_meant) {
            report.good(Topic::Pattern, format!("{} matches its name, {name}", shown(*pattern)));
        } else if length > VALUE_MAX {
            let text = format!(
                "its name has {length} bytes and a pattern at most {VALUE_MAX}, so no pattern can be the whole name, and '*' has to match a part of it; {listed}; {name}"
            );
            report.bad(Topic::Name, text, mend);
        } else {
            let text = format!("no pattern matches its name, {name}; {listed}");
            if others {
                report.add(Topic::Pattern, Level::Note, text + "; other tags than App are", Some(mend));
            } else {
                report.bad(Topic::Pattern, text, mend);
            }
        }
    }

    /// Reports whether the process follows changes of the properties, whether it has disabled tracing for itself, and
    /// whether it has lost events.
    pub(super) fn follows(&mut self, published: &Published, report: &mut Report) {
        let tags = AtraceTag::from_bits_retain(published.number("tags").unwrap_or(0));
        if tags.contains(AtraceTag::NotReady) {
            let mend = "have it call atrace_set_tracing_enabled(true)";
            report.bad(Topic::Disabled, "the program disabled tracing for itself", mend);
        }
        // If the process can't write events to ATrace, no thread watches the properties.
        let is_nowhere = published.get("sink").is_none_or(|sink| sink == "None");
        let filters = if is_nowhere { 0 } else { published.number("filters").unwrap_or(0) };
        // A thread that was just started sets its name a little later, on a busy machine much later. So the facts are
        // collected again after pauses.
        let pauses = [[10; 20].as_slice(), &[100; 20]].concat();
        for (number, pause) in pauses.into_iter().enumerate() {
            if self.facts.is("has_watch") || filters == 0 || number >= 20 && !self.facts.is("has_namesakes") {
                break;
            }
            self.look_again(Duration::from_millis(pause));
        }
        let is_watched = filters > 0 && self.facts.is("has_watch");
        if is_watched {
            report.good(Topic::Filter, "a thread tells its subscriber when the tags change");
        } else if filters > 0 {
            let text = "its subscriber caches the tags, and no thread tells it when they change";
            if self.facts.is("is_forked") {
                let mend = "have the child call atrace_subscriber::after_fork()";
                report.bad(Topic::Filter, format!("{text}: it was forked"), mend);
            } else {
                let mend = "raise the limit for threads (ulimit -u), and start it again";
                report.bad(Topic::Filter, format!("{text}: none could be started"), mend);
            }
        }
        if !self.is_new {
            self.serial(is_watched, report);
        }
        if let Some((count, code)) = published.get("dropped").and_then(|text| text.split_once(' ')) {
            let error = code.parse().map_or(io::Error::other("?"), io::Error::from_raw_os_error);
            let text = format!("at least {count} events could not be written; the last time: {error}");
            report.note(Topic::Lost, text);
        }
    }

    fn serial(&mut self, is_watched: bool, report: &mut Report) {
        let Some(serial) = self.facts.number("serial") else { return };
        let is_noticed = |patient: &Self| {
            patient.facts.published().is_some_and(|published| published.number("serial") == Some(serial))
        };
        let mut is_known = is_noticed(self);
        if !is_known && is_watched {
            // The watching thread may be about to read the properties.
            self.look_again(Duration::from_millis(200));
            is_known = is_noticed(self);
        }
        if is_known {
            report.good(Topic::Serial, "it has read the properties since they changed");
        } else if is_watched {
            let mend = format!("kill -CONT {}; else start it again", self.pid);
            report.bad(Topic::Serial, "its watch has not read the properties since they changed", mend);
        } else {
            let text = "it has not read the properties since they changed: its next event does";
            report.note(Topic::Serial, text);
        }
    }
}

/// Returns the names of tags as text.
pub(crate) fn tag_names(tags: AtraceTag) -> String {
    let names: Vec<_> = tags.iter_names().map(|(name, _)| name).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Quotes a text as one word of a shell command. The word is always quoted, even if that is not necessary.
pub(super) fn in_quotes(text: &[u8]) -> String {
    match quoted(text) {
        word if word.starts_with(['\'', '$']) => word,
        word => format!("'{word}'"),
    }
}
