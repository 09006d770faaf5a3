//! Tests that an event allocates no memory, whether tracing is on or off, and that reading changed properties does not
//! allocate memory either.

mod common;

use std::sync::atomic::{AtomicU64, Ordering};

use atrace::*;
use common::{Place, case};

#[allow(unsafe_code, reason = "a global allocator is")]
mod counting {
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::cell::Cell;

    thread_local! { pub(crate) static COUNT: Cell<u64> = const { Cell::new(0) }; }

    struct Counting;

    fn count() {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
    }

    // SAFETY: every call is passed on to the system's allocator.
    unsafe impl GlobalAlloc for Counting {
        // SAFETY: the call is passed on to the system's allocator.
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            count();
            // SAFETY: the caller has promised what the system's allocator requires.
            unsafe { System.alloc(layout) }
        }

        // SAFETY: the call is passed on to the system's allocator.
        unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
            count();
            // SAFETY: the caller has promised what the system's allocator requires.
            unsafe { System.dealloc(place, layout) }
        }
    }

    #[global_allocator]
    static COUNTING: Counting = Counting;
}

const TAG: AtraceTag = AtraceTag::App;

fn events(round: i32) {
    let _event = begin_scoped_event(TAG, "scoped");
    let _fmt = begin_scoped_event_args(TAG, format_args!("{round:>20} {:?} {:.3}", "text\n", 1.5), &[]);
    trace_method!(TAG);
    atrace_begin(TAG, "a name with\na newline and </script>");
    atrace_begin_args(TAG, |name: &mut NameWriter<'_>| name.push_fmt(format_args!("{round}")), &[]);
    atrace_end(TAG);
    atrace_end(TAG);
    atrace_async_begin(TAG, "a", round);
    atrace_async_end(TAG, "a", round);
    atrace_async_for_track_begin(TAG, "t", "a", round);
    atrace_async_for_track_end(TAG, "t", round);
    atrace_instant(TAG, "|");
    atrace_instant_for_track(TAG, "t", "i");
    atrace_int(TAG, "c", round);
    atrace_counter(TAG, format_args!("{}", round), i64::MIN);
}

#[test]
fn no_event_allocates() {
    let name = case!({
        static HUGE: AtomicU64 = AtomicU64::new(0);
        let huge = "é\n".repeat(1 << 18);
        HUGE.store(huge.len() as u64, Ordering::Relaxed);
        atrace_init();
        println!("KIND {}", sink().kind());
        let store = atrace_sys::properties::Properties::open().unwrap();
        for flags in ["0", "0x400", "0x402", "not a number", "0"] {
            store.set("debug.atrace.tags.enableflags", flags).unwrap();
            let before = counting::COUNT.get();
            // The flags have changed, so the first event reads the properties.
            events(0);
            atrace_update_tags();
            for round in 1..50 {
                events(round);
                atrace_begin(TAG, &huge);
                atrace_begin_args(TAG, format_args!("{huge}"), &[]);
            }
            atrace_set_tracing_enabled(false);
            events(50);
            atrace_set_tracing_enabled(true);
            events(51);
            let _ = (atrace_get_enabled_tags(), atrace_is_tag_enabled(TAG));
            assert_eq!(counting::COUNT.get() - before, 0, "flags {flags}");
        }
    });
    let on = Place::file().on();
    on.run(&name);
    assert!(!on.text().is_empty());
    common::run(on.command(&name).env("ATRACE_MARKER", "/dev/full"));
    Place::file().run(&name);
}
