//! Measures how far the timestamps of this crate are from the system's clock, if this crate's clock gets a new anchor
//! (a reading of the system's clock) once a second. The socket thread makes anchors at the same interval.
//!
//! This is a separate test program, because anchors that other tests make would improve the result.
#![cfg(not(no_tracing))]

use std::time::Duration;

use atrace_perfetto::clock::{Speed, anchor, asked, now};

/// Returns the duration of the test in seconds. With `ATRACE_LONG_TESTS`, this is the minute for which the precision is
/// promised.
fn seconds() -> u32 {
    if std::env::var_os("ATRACE_LONG_TESTS").is_some() { 60 } else { 4 }
}

#[test]
fn it_stays_within_a_microsecond() {
    const OFF_MAX_NS: u64 = 1_000;
    let mut speed = Speed::default();
    let start = asked();
    let mut anchored = start;
    anchor(&mut speed);
    let mut judged = 0;
    while judged < seconds() || asked() - start < u64::from(seconds()) * 1_000_000_000 {
        std::thread::sleep(Duration::from_millis(4));
        let since = asked() - anchored;
        if !speed.is_due(since) {
            continue;
        }
        // The clock is farthest off just before an anchor. On a busy machine an anchor may be late, and then nothing is
        // promised.
        if speed.is_settled() && !speed.is_due(since / 2) {
            // Uses the try in which the two readings of the system's clock are nearest to each other, because nothing
            // interrupted that try.
            let tries = (0..10_000).map(|_| (asked(), now(), asked()));
            let (before, now, after) = tries.min_by_key(|(before, _, after)| after - before).unwrap();
            assert!(before - OFF_MAX_NS <= now && now <= after + OFF_MAX_NS, "{before} {now} {after}");
            judged += 1;
        }
        anchored = asked();
        anchor(&mut speed);
    }
}
