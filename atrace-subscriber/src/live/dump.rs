//! A dump, which is a copy of the spans that are alive when the dump is made, and its formatting as text.

use std::fmt::{self, Write as _};
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use tracing_core::Metadata;

use super::rules::Rules;
use super::spans::{self, LiveSpans};
use super::symbols::{self, Frame};
use super::table::Record;
use super::thread::Thread;

/// Returns the live spans of all [`LiveLayer`](super::LiveLayer)s of this process.
///
/// A span that two layers record appears twice. A layer is included as soon as it is part of a dispatcher or has a
/// [handle](super::LiveLayer::handle).
pub fn dump() -> Dump {
    let layers: Vec<_> = spans::all().iter().filter_map(Weak::upgrade).collect();
    Dump::of(&layers)
}

/// A copy of the spans that were alive when the dump was made. The functions of a dump block no other thread, except a
/// thread that looks up symbols at the same time.
///
/// `Display` writes a tree, the oldest spans first, with the backtraces that were stored; `{:#}` leaves out the
/// backtraces. Printing a backtrace looks up symbols, as [`Span::frames`] does. Making a dump looks up no symbols.
#[derive(Debug)]
pub struct Dump {
    at: Instant,
    records: Vec<Record>,
    addresses: Vec<usize>,
    /// For each layer, the index in `records` after the layer's last record, and the layer's rules for backtraces.
    layers: Vec<(usize, Arc<Rules>)>,
}

impl Dump {
    pub(super) fn of(all: &[Arc<LiveSpans>]) -> Self {
        let mut dump =
            Self { at: Instant::now(), records: Vec::new(), addresses: Vec::new(), layers: Vec::new() };
        for layer in all {
            layer.table.copy(&mut dump.records, &mut dump.addresses);
            dump.layers.push((dump.records.len(), Arc::clone(&layer.rules)));
        }
        dump
    }

    /// Returns the spans, in no particular order.
    pub fn spans(&self) -> impl ExactSizeIterator<Item = Span<'_>> + Clone {
        (0..self.records.len()).map(|index| self.span(index))
    }

    fn span(&self, index: usize) -> Span<'_> {
        let layer = self.layers.partition_point(|(end, _)| *end <= index);
        Span { dump: self, record: &self.records[index], rules: &self.layers[layer].1 }
    }

    /// Returns the spans of one layer as a tree: the indices of the roots, and a map from a span's id to the indices of
    /// its children. The oldest spans come first. `range` has the indices of the layer's records.
    fn tree(&self, range: std::ops::Range<usize>) -> (Vec<usize>, FxHashMap<u64, Vec<usize>>) {
        let mut order: Vec<usize> = range.collect();
        order.sort_by_key(|index| self.records[*index].description.at);
        let ids: FxHashMap<u64, usize> =
            order.iter().map(|index| (self.records[*index].description.id, *index)).collect();
        let mut roots = Vec::new();
        let mut children: FxHashMap<u64, Vec<usize>> = FxHashMap::default();
        for index in order {
            let span = &self.records[index].description;
            match span.parent.filter(|parent| *parent != span.id && ids.contains_key(parent)) {
                Some(parent) => children.entry(parent).or_default().push(index),
                None => roots.push(index),
            }
        }
        (roots, children)
    }
}

/// A span of a [`Dump`].
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    dump: &'a Dump,
    record: &'a Record,
    rules: &'a Arc<Rules>,
}

impl<'a> Span<'a> {
    /// Returns the number of the span's `tracing_core::span::Id`. After the span has closed, another span may get this
    /// number.
    pub fn id(&self) -> u64 {
        self.record.description.id
    }

    /// Returns the id of the parent: the span in which this span was created, or the parent that was given explicitly.
    /// Returns `None` for a root.
    pub fn parent(&self) -> Option<u64> {
        self.record.description.parent
    }

    /// Returns the metadata of the callsite: name, target, level, file and line.
    pub fn metadata(&self) -> &'static Metadata<'static> {
        self.record.description.metadata
    }

    /// Returns the fields as text, including fields that were recorded later. The text has the form `key = value, …`,
    /// with strings in quotes, and at most 1023 bytes.
    pub fn fields(&self) -> &'a str {
        self.record.description.fields.as_deref().unwrap_or_default()
    }

    /// Returns how long the span had been alive when the dump was made.
    pub fn age(&self) -> Duration {
        self.dump.at.saturating_duration_since(self.record.description.at)
    }

    /// Returns the threads that were inside the span. Usually one thread is inside a span. Several threads may have
    /// entered the same span, and no thread is inside the span of a task that is waiting.
    pub fn threads(&self) -> impl ExactSizeIterator<Item = &'a Thread> + Clone {
        self.record.threads.iter().map(|thread| &**thread)
    }

    /// Returns the return addresses that were on the stack when the span was created, the innermost first, including
    /// addresses in this crate and in `tracing`. Returns no addresses if the layer stores [no
    /// backtraces](super::LiveLayer::with_backtraces).
    pub fn addresses(&self) -> &'a [usize] {
        &self.dump.addresses[self.record.addresses.clone()]
    }

    /// Returns the functions at the [`addresses`](Self::addresses), the innermost first, without the functions that the
    /// layer hides.
    ///
    /// This function looks up the symbols, unless they were looked up before. The first lookup in a binary takes long,
    /// because it reads the binary's debug information.
    pub fn frames(&self) -> Arc<[Arc<Frame>]> {
        match (&self.record.description.frames, self.addresses()) {
            (Some(frames), _) => Arc::clone(frames),
            (None, []) => Arc::default(),
            (None, addresses) => symbols::frames(addresses, self.rules),
        }
    }
}

impl fmt::Display for Span<'_> {
    /// Writes `name{fields}  target  age, in thread and …` on one line. Control characters become `?`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = Line(f);
        line.write_str(self.metadata().name())?;
        if !self.fields().is_empty() {
            write!(line, "{{{}}}", self.fields())?;
        }
        write!(line, "  {}  {:.1?}", self.metadata().target(), self.age())?;
        for (at, thread) in self.threads().enumerate() {
            write!(line, "{}{thread}", if at == 0 { ", in " } else { " and " })?;
        }
        Ok(())
    }
}

/// Writes text without line breaks: control characters become `?`.
struct Line<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl fmt::Write for Line<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for (at, part) in text.split(char::is_control).enumerate() {
            if at > 0 {
                self.0.write_str("?")?;
            }
            self.0.write_str(part)?;
        }
        Ok(())
    }
}

/// The depth in the tree beyond which lines are not indented any further.
const INDENTED: usize = 48;

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.records.len() {
            0 => return writeln!(f, "no span is alive"),
            1 => writeln!(f, "1 span is alive")?,
            spans => writeln!(f, "{spans} spans are alive")?,
        }
        let mut start = 0;
        for (end, _) in &self.layers {
            self.write_layer(f, start..*end)?;
            start = *end;
        }
        Ok(())
    }
}

impl Dump {
    fn write_layer(&self, f: &mut fmt::Formatter<'_>, range: std::ops::Range<usize>) -> fmt::Result {
        let first = range.start;
        let mut written = vec![false; range.len()];
        let (mut roots, children) = self.tree(range);
        loop {
            self.write_trees(f, &roots, &children, |index| {
                std::mem::replace(&mut written[index - first], true)
            })?;
            // Ids are reused, and a dump copies spans at different moments. So each of two spans may have the other one
            // as its parent. Such spans are below no root, so one of them is written as a further root.
            let Some(at) = written.iter().position(|written| !written) else { return Ok(()) };
            roots = vec![first + at];
        }
    }

    /// Writes the spans `roots` and all their descendants, but each span only once: `written` marks a span as written,
    /// and returns whether the span was marked before.
    fn write_trees(
        &self,
        f: &mut fmt::Formatter<'_>,
        roots: &[usize],
        children: &FxHashMap<u64, Vec<usize>>,
        mut written: impl FnMut(usize) -> bool,
    ) -> fmt::Result {
        // The spans that are still to be written; the last entry is written next. An entry has the index of the span,
        // the text before the span in its line, the depth, and whether siblings follow.
        let mut left: Vec<(usize, Rc<str>, usize, bool)> = Vec::new();
        let push = |left: &mut Vec<_>, spans: &[usize], before: &Rc<str>, depth| {
            for (at, index) in spans.iter().enumerate().rev() {
                left.push((*index, Rc::clone(before), depth, at + 1 < spans.len()));
            }
        };
        push(&mut left, roots, &"".into(), 0);
        while let Some((index, before, depth, more)) = left.pop() {
            if written(index) {
                continue;
            }
            let span = self.span(index);
            writeln!(f, "{before}{} {span}", if more { "├─" } else { "└─" })?;
            let below: Rc<str> = match depth {
                INDENTED.. => Rc::clone(&before),
                _ => format!("{before}{}  ", if more { "│" } else { " " }).into(),
            };
            let children = children.get(&span.id()).map_or(&[][..], |children| children);
            if !f.alternate() {
                let rule = if children.is_empty() { " " } else { "│" };
                for frame in span.frames().iter() {
                    writeln!(f, "{below}{rule}  {frame}")?;
                }
            }
            push(&mut left, children, &below, depth + 1);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::description_of_a_test;
    use super::super::table::Description;
    use super::*;

    fn described(id: u64, parent: u64) -> Description {
        let parent = Some(parent).filter(|parent| *parent != 0);
        Description { parent, fields: Some(format!("id = {id}").into()), ..description_of_a_test(id) }
    }

    /// Makes a dump of layers, each with spans of these ids and parents, the oldest first. The parent 0 means that
    /// a span has no parent.
    fn dump(layers: &[&[(u64, u64)]]) -> Dump {
        let mut dump =
            Dump { at: Instant::now(), records: Vec::new(), addresses: vec![0x10, 0x20], layers: Vec::new() };
        for (number, layer) in layers.iter().enumerate() {
            for (id, parent) in *layer {
                let description = described(*id, *parent);
                dump.records.push(Record { description, threads: Vec::new(), addresses: 0..0 });
            }
            let rules = Rules::new(number % 2 == 1, Vec::new());
            dump.layers.push((dump.records.len(), Arc::new(rules)));
        }
        dump
    }

    /// Returns the lines of the dump, without targets and ages.
    fn drawn(dump: &Dump) -> Vec<String> {
        let text = dump.to_string();
        text.lines().map(|line| line.split("  t  ").next().unwrap_or_default().to_owned()).collect()
    }

    #[test]
    fn every_span_is_drawn_once() {
        assert_eq!(drawn(&dump(&[])), ["no span is alive"]);
        assert_eq!(drawn(&dump(&[&[(1, 0)]])), ["1 span is alive", "└─ span{id = 1}"]);
        // A parent that is not in the dump, and a span that is its own parent.
        let dump_of_two = dump(&[&[(1, 9), (2, 2)]]);
        assert_eq!(drawn(&dump_of_two), ["2 spans are alive", "├─ span{id = 1}", "└─ span{id = 2}"]);
        // Two spans that are each other's parents, and a span inside one of them. This can happen, because a dump is
        // not of a single moment.
        let circle = dump(&[&[(1, 2), (2, 1), (3, 2), (4, 0)]]);
        assert_eq!(
            drawn(&circle),
            [
                "4 spans are alive",
                "└─ span{id = 4}",
                "└─ span{id = 1}",
                "   └─ span{id = 2}",
                "      └─ span{id = 3}"
            ]
        );
    }

    #[test]
    fn layers_are_drawn_one_after_the_other() {
        let both = dump(&[&[(1, 2), (2, 1)], &[(1, 0), (2, 1)], &[], &[(7, 8), (8, 7)]]);
        assert_eq!(
            drawn(&both),
            [
                "6 spans are alive",
                "└─ span{id = 1}",
                "   └─ span{id = 2}",
                "└─ span{id = 1}",
                "   └─ span{id = 2}",
                "└─ span{id = 7}",
                "   └─ span{id = 8}"
            ]
        );
        // Each span has the rules of its layer.
        let rules: Vec<u32> = both.layers.iter().map(|(_, rules)| rules.number).collect();
        let of_spans: Vec<u32> = both.spans().map(|span| span.rules.number).collect();
        assert_eq!(of_spans, [rules[0], rules[0], rules[1], rules[1], rules[3], rules[3]]);
    }

    #[test]
    fn the_oldest_is_drawn_first_wherever_it_was_kept() {
        let mut dump = dump(&[&[(1, 0), (2, 0), (3, 1), (4, 1)]]);
        dump.records.reverse();
        assert_eq!(
            drawn(&dump)[1..],
            ["├─ span{id = 1}", "│  ├─ span{id = 3}", "│  └─ span{id = 4}", "└─ span{id = 2}"]
        );
    }

    #[test]
    fn backtraces_are_drawn_between_a_span_and_its_children() {
        let mut dump = dump(&[&[(1, 0), (2, 1), (3, 0)]]);
        for (at, record) in dump.records.iter_mut().enumerate() {
            record.addresses = if at == 2 { 0..2 } else { at..at + 1 };
        }
        let expected = [
            "3 spans are alive",
            "├─ span{id = 1}",
            "│  │  0x10",
            "│  └─ span{id = 2}",
            "│        0x20",
            "└─ span{id = 3}",
            "      0x10",
            "      0x20",
        ];
        assert_eq!(drawn(&dump), expected);
        let alternate = format!("{dump:#}");
        assert!(alternate.lines().count() == 4 && !alternate.contains("0x"), "{alternate}");
        // Frames that were looked up at the span's creation are not looked up again.
        let rules = Rules::new(false, Vec::new());
        dump.records[2].description.frames = Some(symbols::look_up_afresh(&[0x30], &rules));
        assert_eq!(drawn(&dump)[5..], ["└─ span{id = 3}", "      0x30"]);
    }
}
