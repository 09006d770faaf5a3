//! Compares Perfetto's own SDK for Rust with this workspace's Perfetto backend. The SDK is a second producer in this
//! process, beside this workspace's backend, and the same service receives the events of both.
//!
//! As in the cases `scoped` and `scoped_literal`, an operation is a scope, whose begin and end are two events. The SDK
//! has as much shared memory as this workspace's backend. After each measurement, the SDK flushes its events, so that
//! the consumer's count of events is complete.

use std::io;
use std::time::{Duration, Instant};

use atrace_benches::catalogue::{Event, Id, State, Who};
use atrace_benches::measure::paired::{Case, Paired};
use perfetto_sdk::producer::{Backends, Producer, ProducerInitArgsBuilder};
use perfetto_sdk::track_event::{EventContext, TrackEvent};
use perfetto_sdk::{
    scoped_track_event, track_event_categories, track_event_category_enabled, track_event_instant,
};

track_event_categories! {
    pub(crate) mod categories {
        ("app", "what the bench traces", []),
    }
}
// The SDK's macros find the module under this name.
use self::categories as perfetto_te_ns;

/// The time limit for the start of the session that records the SDK's events.
const PATIENCE: Duration = Duration::from_secs(10);

/// Connects the SDK to the service that the environment variables name, until the process ends. Returns when the
/// session has switched on the category of the SDK's events. `memory` is the size of the shared memory in bytes.
pub(crate) fn connect(memory: u64) -> io::Result<()> {
    let kib = u32::try_from(memory >> 10).expect("memory of a mebibyte");
    let arguments = ProducerInitArgsBuilder::new().backends(Backends::SYSTEM).shmem_size_hint_kb(kib);
    Producer::init(arguments.build());
    TrackEvent::init();
    categories::register().map_err(io::Error::other)?;
    let start = Instant::now();
    while !track_event_category_enabled!("app") {
        if start.elapsed() > PATIENCE {
            return Err(io::Error::other("the reader has begun no session of perfetto-sdk"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Adds the case of the SDK to `paired`, with at most `most` operations in a measurement. `wrote` is called with the
/// number of written events. `before` is called before each measurement, and waits until the shared memory has room.
pub(crate) fn add<'a>(
    paired: &mut Paired<'a>,
    most: u64,
    wrote: impl Fn(u64) + Copy + 'a,
    before: impl FnMut() + 'a,
) {
    let literal = Event::named("scoped_literal").expect("it is of the catalogue");
    let id = Id::event(Who::Other("peer-perfetto-sdk".to_owned()), State::On, literal).to_string();
    let run = move |n| {
        (0..n).for_each(|_| scope());
        wrote(2 * n);
    };
    let after = move || {
        track_event_instant!("app", "all of it", |context: &mut EventContext| _ = context.set_flush());
        wrote(1);
    };
    paired.add(Case::new(&id, run).before(before).after(after).at_most(most));
    for name in ["scoped_literal", "scoped"] {
        let event = Event::named(name).expect("it is of the catalogue");
        paired.compare(Id::event(Who::Perfetto, State::On, event).to_string(), &id);
    }
}

fn scope() {
    scoped_track_event!("app", "0123456789");
}
