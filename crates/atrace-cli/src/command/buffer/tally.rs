//! Measures how full a ring buffer became, and gives advice on its size.

use crate::tracefs::{Instance, Stats};

use crate::command::buffer::ring::available_kb;
use crate::command::terminal::{Result, thousands};

/// The size of the pages that a ring buffer consists of, in bytes.
const PAGE: f64 = 4096.0;

/// Statistics of how full a buffer became, read from time to time.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// The largest mean size of an event, over all CPUs whose part of the buffer was full.
    largest: f64,
    last: Vec<Stats>,
}

impl Tally {
    /// Reads the buffer's statistics. Costs a few system calls for each CPU.
    pub(crate) fn look(&mut self, instance: &Instance) -> Result<()> {
        self.last = instance.cpu_stats()?;
        for cpu in self.last.iter().filter(|cpu| cpu.overrun > 0 && cpu.entries > 0) {
            self.largest = self.largest.max(cpu.bytes as f64 / cpu.entries as f64);
        }
        Ok(())
    }

    fn sum(&self, of: impl Fn(&Stats) -> u64) -> u64 {
        self.last.iter().map(of).sum()
    }

    pub(crate) fn written(&self) -> u64 {
        self.sum(Stats::written)
    }

    pub(crate) fn lost(&self) -> u64 {
        self.sum(Stats::lost)
    }

    /// Returns the size in KiB for each CPU that would have kept all events, even if all threads of the program had
    /// run on one CPU.
    fn needed_kb(&self, available_kb: u64) -> u64 {
        let cpus = self.last.len().max(1) as u64;
        let mean = |cpu: &Stats| if cpu.entries == 0 { 0.0 } else { cpu.bytes as f64 / cpu.entries as f64 };
        let size = self.last.iter().map(mean).fold(self.largest, f64::max).max(8.0);
        let kb = |events: u64, margin: f64| {
            // A page has a header, and unused space at its end where the next event did not fit.
            let in_page = ((PAGE - 16.0) / size).floor().max(1.0);
            let pages = (events as f64 / in_page).ceil() * margin + 8.0;
            ((pages * PAGE / 1024.0) as u64).next_multiple_of(64)
        };
        let alone = kb(self.written(), 1.15);
        if alone.saturating_mul(cpus) <= available_kb / 2 {
            return alone;
        }
        // That would take too much memory. Instead, the events are assumed to be spread over the CPUs as this time,
        // with a margin of one half.
        kb(self.last.iter().map(Stats::written).max().unwrap_or(0), 1.5)
    }

    /// Describes how many events were written and lost.
    pub(crate) fn report(&self, what: &str) -> String {
        let is_whole = self.lost() == 0;
        self.report_of_some(what) + if is_whole { ", none lost" } else { "" }
    }

    /// The same, for events of which some may have been lost before they reached the buffer.
    pub(crate) fn report_of_some(&self, what: &str) -> String {
        let (written, lost) = (self.written(), self.lost());
        let mut text = format!("{} {what} written", thousands(written));
        if lost > 0 {
            let kb = self.needed_kb(available_kb());
            text.push_str(&format!(
                ", of which the buffer lost {}: --buffer {kb} would have kept them",
                thousands(lost)
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(entries: u64, overrun: u64, size: u64) -> Stats {
        let mut stats = Stats::default();
        (stats.entries, stats.overrun, stats.bytes) = (entries, overrun, entries * size);
        stats
    }

    #[test]
    fn the_advice_has_room_for_all_events_on_one_cpu() {
        let tally = Tally { largest: 0.0, last: vec![stats(1000, 499_000, 48), stats(1000, 499_000, 40)] };
        assert_eq!((tally.written(), tally.lost()), (1_000_000, 998_000));
        let kb = tally.needed_kb(u64::MAX);
        // A page holds 85 events of 48 bytes.
        assert!((1_000_000 / 85 * 4..1_000_000 / 85 * 5).contains(&kb), "{kb}");
        // If that is too much memory: the events as they were spread over the CPUs, with a margin.
        let less = tally.needed_kb(kb);
        assert!(less >= 500_000 / 85 * 4 && less < kb, "{less}");
    }

    #[test]
    fn sizes_seen_before_count() {
        let last = vec![stats(1000, 9000, 40)];
        let small = Tally { largest: 0.0, last: last.clone() }.needed_kb(u64::MAX);
        let large = Tally { largest: 1050.0, last }.needed_kb(u64::MAX);
        // Three of these events fill a page.
        assert!(large >= 10_000 / 3 * 4 && small < large / 10, "{small} {large}");
    }

    #[test]
    fn the_report_says_what_was_lost() {
        let kept = Tally { largest: 0.0, last: vec![stats(1234, 0, 40)] };
        assert_eq!(kept.report("events"), "1,234 events written, none lost");
        let lost = Tally { largest: 0.0, last: vec![stats(1000, 1, 40)] };
        assert!(lost.report("events").contains("lost 1: --buffer "), "{}", lost.report("events"));
    }
}
