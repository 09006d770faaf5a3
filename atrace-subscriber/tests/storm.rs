//! Tests many threads while tracing is switched on and off.

mod common;

use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use atrace_subscriber::AsyncSpans;
use common::{balanced, case, each_role, install, install_filtered, on, settled};
use tracing::{info, info_span};

const THREADS: usize = 8;

/// A random generator with a fixed seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % limit
    }
}

/// The minimum number of times that one run of a test switches tracing on and off.
const SWITCHES: usize = 100;
/// The minimum number of slices that one run of a test writes.
const SLICES: usize = 3000;

/// The approximate number of slices that this process has written.
static BEGUN: AtomicUsize = AtomicUsize::new(0);

/// Enters a span, and counts it if its slice is written.
fn entered(span: tracing::Span) -> tracing::span::EnteredSpan {
    if atrace::atrace_is_tag_enabled(atrace::AtraceTag::App) && !span.is_disabled() {
        BEGUN.fetch_add(1, Ordering::Relaxed);
    }
    span.entered()
}

/// Enters, leaves and drops spans in random order.
fn at_random(chance: &mut Chance, thread: usize, open: &mut Vec<tracing::span::EnteredSpan>) {
    match chance.below(8) {
        0 => open.push(entered(info_span!("plain"))),
        1 => open.push(entered(info_span!("fields", thread, later = tracing::field::Empty))),
        2 => info!(thread, "event"),
        3 => drop(info_span!("async", atrace.track = "track")),
        4 if !open.is_empty() => {
            let at = chance.below(open.len() as u64) as usize;
            let left = open.swap_remove(at).exit();
            left.record("later", 1);
            left.in_scope(|| ());
        }
        _ if open.len() > 40 => open.clear(),
        _ => drop(open.pop()),
    }
}

/// Switches tracing on and off at random times, at least `SWITCHES` times and until `SLICES` slices were written.
fn switch_at_random(over: &AtomicBool) {
    let mut chance = Chance(7);
    let mut switches = 0;
    while switches < SWITCHES || BEGUN.load(Ordering::Relaxed) < SLICES {
        let switched = on();
        std::thread::sleep(Duration::from_micros(chance.below(1000)));
        drop(switched);
        std::thread::sleep(Duration::from_micros(chance.below(500)));
        switches += 1;
    }
    over.store(true, Ordering::Relaxed);
}

fn storm() {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| switch_at_random(&over));
        for thread in 0..THREADS {
            let over = &over;
            scope.spawn(move || {
                let mut chance = Chance(thread as u64 + 1);
                let mut open = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    (0..8).for_each(|_| at_random(&mut chance, thread, &mut open));
                    std::thread::sleep(Duration::from_micros(100));
                }
                open.clear();
            });
        }
    });
}

fn is_balanced(name: &str) {
    each_role(name, |role, place| {
        place.run(name, role);
        let messages = place.messages();
        let begins = balanced(&messages);
        eprintln!("{name} ({role:?}): {} messages, {begins} slices", messages.len());
        assert!(begins > SLICES / 2, "hardly anything was written");
        let of = |start: &str| messages.iter().filter(|message| message.text.starts_with(start)).count();
        assert_eq!(of("G|"), of("H|"));
    });
}

#[test]
fn slices_are_balanced_while_it_is_switched() {
    let name = case!({
        install!();
        storm();
    });
    is_balanced(&name);
}

#[test]
fn slices_are_balanced_while_it_is_switched_in_filter_mode() {
    let name = case!({
        install_filtered();
        storm();
    });
    is_balanced(&name);
}

#[test]
fn slices_are_balanced_while_it_is_switched_in_async_mode() {
    let name = case!({
        install!(.with_async_spans("", AsyncSpans::Beside).with_fields_while_off());
        storm();
    });
    is_balanced(&name);
}

/// Runs threads that write events while another thread switches tracing. Tracing is switched only under a lock that the
/// writing threads share, so each of them can count the events that must be in the trace.
fn exactly(settled: impl Fn(bool) + Sync) {
    let is_on_lock = RwLock::new(false);
    let over = AtomicBool::new(false);
    let written = AtomicUsize::new(0);
    let number = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (is_on_lock, over, number, written) = (&is_on_lock, &over, &number, &written);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    for _ in 0..4 {
                        let is_on = is_on_lock.read().unwrap();
                        let n = number.fetch_add(1, Ordering::Relaxed);
                        let _outer = info_span!("outer").entered();
                        let span = info_span!("inner", thread, n);
                        span.in_scope(|| info!(n, "event"));
                        if *is_on {
                            written.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    std::thread::sleep(Duration::from_micros(300));
                }
            });
        }
        for _ in 0..40 {
            let mut is_on = is_on_lock.write().unwrap();
            let switched = on();
            settled(true);
            *is_on = true;
            drop(is_on);
            std::thread::sleep(Duration::from_millis(3));
            let mut is_on = is_on_lock.write().unwrap();
            drop(switched);
            settled(false);
            *is_on = false;
            drop(is_on);
            std::thread::sleep(Duration::from_millis(3));
        }
        over.store(true, Ordering::Relaxed);
    });
    println!("WRITTEN {}", written.load(Ordering::Relaxed));
}

fn nothing_is_lost(name: &str) {
    each_role(name, |role, place| {
        let said = place.run(name, role);
        let written: usize =
            said.lines().find_map(|line| line.split_once("WRITTEN ")).unwrap().1.trim().parse().unwrap();
        let messages = place.messages();
        eprintln!("{name} ({role:?}): {written} times on");
        assert!(written > 100);
        assert_eq!(balanced(&messages), 2 * written, "{role:?}");
        let mut events: Vec<_> =
            messages.iter().filter(|message| message.text.starts_with("I|event, n = ")).collect();
        assert_eq!(events.len(), written, "{role:?}");
        events.sort_by(|a, b| a.text.cmp(&b.text));
        events.dedup_by(|a, b| a.text == b.text);
        assert_eq!(events.len(), written);
        assert_eq!(messages.len(), 5 * written);
    });
}

#[test]
fn while_on_everything_is_written_and_while_off_nothing() {
    let name = case!({
        install!();
        exactly(|_| ());
    });
    nothing_is_lost(&name);
}

#[test]
fn while_on_everything_is_written_and_while_off_nothing_in_filter_mode() {
    let name = case!({
        install_filtered();
        exactly(|on| _ = settled(on));
    });
    nothing_is_lost(&name);
}
