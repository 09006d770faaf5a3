//! Tests the messages that are written for spans.

mod common;

use std::sync::{Arc, Barrier};

use atrace_subscriber::{AtraceLayer, AtraceSubscriber};
use common::{Place, Role, balanced, case, each_role, in_each_role, install, off_in_each_role, on};
use tracing::{Span, debug_span, error_span, info, info_span, instrument, span, trace_span};
use tracing_subscriber::prelude::*;

/// Tests a span that gets its name from a field. In the message, the span's fields follow this name.
#[test]
fn a_field_may_name_a_span() {
    let name = case!({
        install!(.with_name_field("name"));
        info_span!("request", status = 200, otel.name = "GET /").in_scope(|| ());
        let late = info_span!("late", name = tracing::field::Empty, other = 1);
        late.record("name", "später").in_scope(|| ());
        late.record("other", 2).in_scope(|| ());
    });
    in_each_role(&name, |role, texts| {
        let expected = [
            "B|GET /, status = 200, otel.name = \"GET /\"",
            "E",
            "B|später, other = 1, name = \"später\"",
            "E",
            "B|später, other = 1, name = \"später\", other = 2",
            "E",
        ];
        assert_eq!(texts, expected, "{role:?}");
    });
}

#[test]
fn a_span_is_a_slice_with_its_name_and_fields() {
    #[instrument]
    fn function(number: i32, text: &str) {
        info!("in function");
    }
    let name = case!({
        install!();
        {
            let _outer = info_span!("outer").entered();
            let _inner =
                debug_span!(target: "elsewhere", "inner", arg1 = 123, arg2 = "argument", arg3 = ?[1, 2])
                    .entered();
            info!("event");
        }
        trace_span!("never entered", x = 1);
        error_span!("twice").in_scope(|| ());
        let span = span!(tracing::Level::INFO, "again", error = %"shown", nothing = tracing::field::Empty);
        span.in_scope(|| ());
        span.in_scope(|| ());
        function(7, "seven");
    });
    in_each_role(&name, |_, texts| {
        assert_eq!(
            texts,
            [
                "B|outer",
                "B|inner, arg1 = 123, arg2 = \"argument\", arg3 = [1, 2]",
                "I|event",
                "E",
                "E",
                "B|twice",
                "E",
                "B|again, error = shown",
                "E",
                "B|again, error = shown",
                "E",
                "B|function, number = 7, text = \"seven\"",
                "I|in function",
                "E"
            ]
        );
    });
}

#[test]
fn without_fields_a_span_is_its_name() {
    let name = case!({
        install!(.without_fields());
        let span = info_span!("span", a = 1, later = tracing::field::Empty);
        span.record("later", 2);
        span.in_scope(|| ());
    });
    in_each_role(&name, |_, texts| assert_eq!(texts, ["B|span", "E"]));
}

#[test]
fn fields_recorded_later_show_from_the_next_entry() {
    let name = case!({
        install!();
        let span = info_span!("span", first = 1, later = tracing::field::Empty, more = tracing::field::Empty);
        let inside = span.enter();
        span.record("later", "text");
        drop(inside);
        span.record("more", 2.5);
        span.in_scope(|| ());
        let bare = info_span!("bare", later = tracing::field::Empty);
        bare.record("later", true);
        bare.record("later", false);
        bare.in_scope(|| ());
        let long = info_span!("long", later = tracing::field::Empty);
        for _ in 0..5 {
            long.record("later", "é".repeat(300).as_str());
        }
        long.in_scope(|| ());
        info_span!("none").record("unknown", 1);
    });
    in_each_role(&name, |_, texts| {
        assert_eq!(texts[..2], ["B|span, first = 1", "E"]);
        assert_eq!(texts[2..4], ["B|span, first = 1, later = \"text\", more = 2.5", "E"]);
        assert_eq!(texts[4..6], ["B|bare, later = true, later = false", "E"]);
        assert!(texts[6].starts_with("B|long, later = \"ééé") && (1005..1024).contains(&texts[6].len()));
        assert_eq!(texts.len(), 8);
    });
}

#[test]
fn a_span_left_before_a_younger_one_ends_it_and_begins_it_again() {
    let name = case!({
        install!();
        let spans = [info_span!("a"), info_span!("b", n = 1), info_span!("c"), info_span!("d")];
        let [a, b, c, d] = spans.clone().map(|span| span.entered());
        drop(b);
        info!("b left");
        drop(a);
        info!("a left");
        drop(d);
        drop(c);
        // Enters a span twice, and leaves it once before and once after the span `x` is left.
        let outer = info_span!("x").entered();
        let [again, once] = [spans[1].enter(), spans[1].enter()];
        drop(again);
        drop(outer);
        drop(once);
    });
    in_each_role(&name, |_, texts| {
        let expected = "B|a B|b, n = 1 B|c B|d E E E B|c B|d I|b left E E E B|c B|d I|a left E E \
                        B|x B|b, n = 1 B|b, n = 1 E E E B|b, n = 1 E";
        assert_eq!(texts.join(" "), expected);
    });
}

#[test]
fn deep_stacks_are_slices_too() {
    const DEEP: usize = 100;
    let name = case!({
        install!();
        let mut inside: Vec<_> = (0..DEEP).map(|n| info_span!("deep", n).entered()).collect();
        let out_of_order = inside.remove(DEEP - 10);
        drop(out_of_order);
        let low = inside.remove(10);
        drop(low);
        while inside.pop().is_some() {}
        info_span!("shallow").in_scope(|| ());
    });
    in_each_role(&name, |_, texts| {
        let begins = |texts: &[String]| texts.iter().filter(|text| text.starts_with("B|")).count();
        let opened_again = 9 + (DEEP - 1 - 11);
        assert_eq!(begins(&texts), DEEP + opened_again + 1);
        assert_eq!(texts.len(), 2 * begins(&texts));
        assert_eq!(texts[DEEP - 1], "B|deep, n = 99");
        assert_eq!(texts[texts.len() - 2..], ["B|shallow", "E"]);
    });
}

#[test]
fn slices_are_balanced_whatever_is_switched_in_between() {
    let name = case!({
        install!();
        let off_off = info_span!("off, off").entered();
        let off_on = info_span!("off, on", x = 1).entered();
        let created_off = info_span!("created off", x = 1);
        let on1 = on();
        off_on.exit();
        let on_on = info_span!("on, on", x = 1).entered();
        let on_off = info_span!("on, off", x = 1).entered();
        created_off.in_scope(|| info!("inside"));
        created_off.record("x", 2);
        drop(on1);
        on_off.exit();
        let off_again = info_span!("off again").entered();
        let _on = on();
        off_again.exit();
        on_on.exit();
        off_off.exit();
    });
    off_in_each_role(&name, |_, texts| {
        assert_eq!(
            texts,
            ["B|on, on, x = 1", "B|on, off, x = 1", "B|created off", "I|inside", "E", "E", "E"]
        );
    });
}

#[test]
fn out_of_order_with_slices_that_were_never_begun() {
    let name = case!({
        install!();
        let on1 = on();
        let a = info_span!("a").entered();
        drop(on1);
        let b = info_span!("b, off").entered();
        let on2 = on();
        let c = info_span!("c").entered();
        drop(b); // The slice of b was never begun, so no other slice has to end and begin again.
        info!("b left");
        let d = info_span!("d").entered();
        drop(on2);
        drop(a); // The slices of c and d end with a's slice, and don't begin again while tracing is off.
        let _on = on();
        drop(d);
        drop(c);
        info!("done");
    });
    off_in_each_role(&name, |_, texts| {
        assert_eq!(texts, ["B|a", "B|c", "I|b left", "B|d", "E", "E", "E", "I|done"]);
    });
}

#[test]
fn fields_of_spans_made_while_off_are_kept_where_that_was_asked_for() {
    let name = case!({
        install!(.with_fields_while_off());
        let span = info_span!("span", kept = 1, later = tracing::field::Empty);
        span.record("later", "too");
        let _on = on();
        span.in_scope(|| ());
    });
    off_in_each_role(&name, |_, texts| assert_eq!(texts, ["B|span, kept = 1, later = \"too\"", "E"]));
}

#[test]
fn the_current_span_is_known_on_and_off() {
    let name = case!({
        install!();
        for on in [false, true].map(|it| move || it.then(on)) {
            let on = on();
            assert!(Span::current().is_none());
            let outer = info_span!("outer", x = 1);
            let plain = info_span!("plain");
            let inside = outer.enter();
            assert_eq!(Span::current().id(), outer.id());
            assert_eq!(Span::current().metadata().unwrap().name(), "outer");
            {
                let _inside = plain.enter();
                assert_eq!(Span::current().id(), plain.id());
                assert_eq!(Span::current().metadata().unwrap().name(), "plain");
                std::thread::spawn(|| assert!(Span::current().is_none())).join().unwrap();
            }
            let current = Span::current();
            drop(inside);
            drop(outer);
            assert_eq!(current.metadata().unwrap().name(), "outer");
            current.in_scope(|| assert_eq!(Span::current().id(), current.id()));
            assert!(Span::current().is_none());
            drop(on);
        }
    });
    off_in_each_role(&name, |_, texts| {
        assert_eq!(texts, ["B|outer, x = 1", "B|plain", "E", "E", "B|outer, x = 1", "E"]);
    });
}

#[test]
fn clones_close_once_and_links_are_ignored() {
    let name = case!({
        install!();
        let span = info_span!("span", n = 1);
        let other = info_span!("other", n = 2);
        span.follows_from(&other);
        span.follows_from(span.id());
        let child = info_span!(parent: &span, "child", n = 3);
        drop(other);
        let clones: Vec<_> = (0..3).map(|_| span.clone()).collect();
        drop(span);
        // The span's slot is not given to another span as long as a clone of the span exists.
        let others: Vec<_> = (0..40).map(|n| info_span!("others", n)).collect();
        clones[1].in_scope(|| child.in_scope(|| ()));
        let thread = std::thread::spawn(move || clones.into_iter().for_each(|span| span.in_scope(|| ())));
        thread.join().unwrap();
        others[39].in_scope(|| ());
    });
    in_each_role(&name, |_, texts| {
        let span = ["B|span, n = 1", "E"].map(str::to_owned);
        assert_eq!(texts[..4], ["B|span, n = 1", "B|child, n = 3", "E", "E"]);
        assert_eq!(texts[4..10].concat(), span.concat().repeat(3));
        assert_eq!(texts[10..], ["B|others, n = 39", "E"]);
    });
}

#[test]
fn spans_may_be_entered_on_many_threads_at_once() {
    let name = case!({
        install!();
        let span = info_span!("shared", n = 1);
        let barrier = Arc::new(Barrier::new(8));
        let threads: Vec<_> = (0..8)
            .map(|thread| {
                let (span, barrier) = (span.clone(), Arc::clone(&barrier));
                std::thread::spawn(move || {
                    barrier.wait();
                    for n in 0..200 {
                        let _shared = span.enter();
                        let _own = info_span!("own", thread, n).entered();
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    each_role(&name, |role, place| {
        let place = place.on();
        place.run(&name, role);
        let messages = place.messages();
        assert_eq!(balanced(&messages), 8 * 200 * 2);
        assert_eq!(messages.iter().filter(|message| message.text == "B|shared, n = 1").count(), 8 * 200);
        let mut own: Vec<_> =
            messages.iter().filter_map(|message| message.text.strip_prefix("B|own, ")).collect();
        own.sort_unstable();
        own.dedup();
        assert_eq!(own.len(), 8 * 200);
    });
}

#[test]
fn a_thread_may_trace_until_its_very_end() {
    struct AtTheEnd(Option<tracing::span::EnteredSpan>);
    impl Drop for AtTheEnd {
        fn drop(&mut self) {
            info!("thread ends");
            if common::role() == Role::Alone {
                info_span!("in a destructor", n = 1).in_scope(|| ()); // A `Registry` panics at a thread's end.
            }
            drop(self.0.take());
            info!("thread ended");
        }
    }
    thread_local! {
        static FIRST: std::cell::RefCell<AtTheEnd> = const { std::cell::RefCell::new(AtTheEnd(None)) };
        static SECOND: std::cell::RefCell<AtTheEnd> = const { std::cell::RefCell::new(AtTheEnd(None)) };
    }
    let name = case!({
        install!();
        let deep = || (0..40).map(|_| info_span!("deep").entered()).collect::<Vec<_>>();
        let thread = std::thread::spawn(move || {
            // `FIRST` is set before the subscriber first uses thread-local memory, and `SECOND` after that.
            if common::role() == Role::Alone {
                FIRST.with(|it| it.borrow_mut().0 = Some(info_span!("first", n = 1).entered()));
            }
            let deep = deep();
            SECOND.with(|it| it.borrow_mut().0 = Some(info_span!("second").entered()));
            drop(deep);
        });
        thread.join().unwrap();
    });
    each_role(&name, |role, place| {
        let place = place.on();
        place.run(&name, role);
        let messages = place.messages();
        balanced(&messages);
        let texts = place.texts();
        let ends = if role == Role::Alone { 2 } else { 1 };
        assert_eq!(texts.iter().filter(|text| *text == "I|thread ended").count(), ends, "{role:?}");
        let spans = texts.iter().filter(|text| *text == "B|in a destructor, n = 1").count();
        assert_eq!(spans, if role == Role::Alone { 2 } else { 0 });
    });
}

#[test]
fn a_process_may_end_within_spans_and_its_exit_handlers_may_trace() {
    extern "C" fn at_exit() {
        if common::role() == Role::Alone {
            info_span!("at exit", n = 1).in_scope(|| ()); // A `Registry` panics in exit handlers.
        }
        info!("last words");
    }
    let name = case!({
        install!();
        #[allow(unsafe_code, reason = "atexit has no safe form")]
        // SAFETY: the function takes no arguments and returns normally.
        let registered = unsafe { libc::atexit(at_exit) };
        assert_eq!(registered, 0);
        let _open = info_span!("open at the end").entered();
        let (inside, is_inside) = std::sync::mpsc::channel();
        let _other = std::thread::spawn(move || {
            let _open = info_span!("open elsewhere", n = 1).entered();
            inside.send(()).unwrap();
            std::thread::sleep(std::time::Duration::from_secs(100));
        });
        is_inside.recv().unwrap();
        println!("1 passed");
        std::process::exit(0);
    });
    in_each_role(&name, |role, mut texts| {
        assert_eq!(texts[..2], ["B|open at the end", "B|open elsewhere, n = 1"]);
        if role == Role::Alone {
            assert_eq!(texts.drain(2..4).collect::<Vec<_>>(), ["B|at exit, n = 1", "E"]);
        }
        assert_eq!(texts[2..], ["I|last words"]);
    });
}

#[test]
fn subscribers_on_one_thread_share_its_slices() {
    let name = case!({
        let one = tracing::Dispatch::new(AtraceSubscriber::default());
        let two = tracing::Dispatch::new(tracing_subscriber::registry().with(AtraceLayer::default()));
        let enter = |dispatch: &tracing::Dispatch, name: &'static str| {
            tracing::dispatcher::with_default(dispatch, || match name {
                "a" => info_span!("a", n = 1).entered(),
                "b" => info_span!("b", n = 2).entered(),
                _ => info_span!("c").entered(),
            })
        };
        let a = enter(&one, "a");
        let b = enter(&two, "b");
        let c = enter(&one, "c");
        drop(a);
        drop(b);
        drop(c);
        // Each span and event is passed to both layers of a stack, one after the other.
        let stack = tracing_subscriber::registry()
            .with(AtraceLayer::default())
            .with(AtraceLayer::default().without_fields());
        tracing::subscriber::with_default(stack, || {
            let outer = info_span!("outer", n = 1).entered();
            info_span!("inner", n = 2).in_scope(|| info!(n = 3));
            drop(outer);
        });
    });
    let Some(place) = Place::new(&name) else { return };
    let place = place.on();
    place.run(&name, Role::Alone);
    let expected = "B|a, n = 1 B|b, n = 2 B|c E E E B|b, n = 2 B|c E E B|c E \
                    B|outer, n = 1 B|outer B|inner, n = 2 B|inner I|n = 3 I|INFO event E E E E";
    assert_eq!(place.texts().join(" "), expected);
}

#[test]
fn a_subscriber_may_have_layers_of_others_and_filters_on_top() {
    let name = case!({
        use tracing_subscriber::filter::LevelFilter;
        tracing::subscriber::set_global_default(AtraceSubscriber::default().with(LevelFilter::INFO)).unwrap();
        assert_eq!(LevelFilter::current(), LevelFilter::INFO);
        debug_span!("debug").in_scope(|| info!("info"));
        info_span!("info").in_scope(|| tracing::debug!("debug"));
    });
    let Some(place) = Place::new(&name) else { return };
    let place = place.on();
    place.run(&name, Role::Alone);
    assert_eq!(place.texts(), ["I|info", "B|info", "E"]);
}

#[test]
fn misuse_of_ids_harms_nobody() {
    let name = case!({
        install!();
        let dispatch = tracing::dispatcher::get_default(Clone::clone);
        if common::role() == Role::Alone {
            // A `Registry` would panic if it got these ids.
            let stale = info_span!("stale", n = 1).id().unwrap();
            // A smaller number may be a valid id: the number of a callsite is the id of its spans without stored data.
            // That number depends on the callsite's address.
            let [all_bits, in_registry, no_callsite] =
                [u64::MAX, 1 << 40, 1 << 31].map(tracing::Id::from_u64);
            for id in [stale, all_bits, in_registry, no_callsite] {
                dispatch.clone_span(&id);
                dispatch.enter(&id);
                dispatch.record_follows_from(&id, &id);
                assert!(!dispatch.try_close(id.clone()));
                dispatch.exit(&id);
                dispatch.exit(&id);
            }
        }
        let span = info_span!("span", n = 1);
        let id = span.id().unwrap();
        dispatch.exit(&id); // The thread never entered the span.
        std::thread::scope(|scope| {
            span.in_scope(|| scope.spawn(|| dispatch.exit(&id)).join().unwrap());
        });
        assert!(Span::current().is_none());
    });
    in_each_role(&name, |_, texts| assert_eq!(texts, ["B|span, n = 1", "E"]));
}

#[test]
fn a_layer_that_is_off_among_others_has_nothing_begin_again() {
    let name = case!({
        use atrace::AtraceTag;
        let stack = tracing_subscriber::registry()
            .with(AtraceLayer::default())
            .with(AtraceLayer::new(AtraceTag::Database))
            .with(AtraceLayer::default());
        tracing::subscriber::with_default(stack, || {
            let outer = info_span!("outer", n = 1).entered();
            info_span!("inner").in_scope(|| info!("event"));
            drop(outer);
        });
    });
    let Some(place) = Place::new(&name) else { return };
    let place = place.on();
    place.run(&name, Role::Alone);
    let expected = "B|outer, n = 1 B|outer, n = 1 B|inner B|inner I|event I|event E E E E";
    assert_eq!(place.texts().join(" "), expected);
}

#[test]
fn spans_left_in_the_order_of_their_entry_cost_a_few_messages_each() {
    const SPANS: usize = 300;
    let name = case!({
        install!();
        let enter = |n| info_span!("span", n).entered();
        let last: Vec<_> = (0..SPANS).map(enter).collect();
        drop(last); // Leaves the spans in the order of their entry.
        info!("all left");
        // Exits the middle one of the entered spans, then enters and exits another span, and repeats that until no span
        // is entered.
        let mut inside: Vec<_> = (0..SPANS).map(enter).collect();
        while !inside.is_empty() {
            drop(inside.remove(inside.len() / 2));
            info_span!("meanwhile").in_scope(|| ());
        }
        info!("all left again");
    });
    each_role(&name, |role, place| {
        let place = place.on();
        place.run(&name, role);
        let messages = place.messages();
        balanced(&messages);
        eprintln!("{} messages of {SPANS} spans twice, and {SPANS} in between", messages.len());
        // Each slice begins once, and begins again at most 8 times because an earlier span is left. Each pending end
        // causes at most one further begin.
        assert!(messages.len() < 3 * SPANS * 20, "{}", messages.len());
        for text in ["I|all left", "I|all left again"] {
            let at = messages.iter().position(|message| message.text == text).unwrap();
            let count =
                |of: &str| messages[..at].iter().filter(|message| message.text.starts_with(of)).count();
            assert_eq!(count("B|"), count("E"), "{text}: something is still open");
        }
    });
}

#[test]
fn spans_left_in_the_order_of_their_entry_end_when_as_many_wait_as_begin_again() {
    const SPANS: usize = 20;
    let name = case!({
        install!();
        let inside: Vec<_> = (0..SPANS).map(|n| info_span!("span", n).entered()).collect();
        for span in inside {
            drop(span);
            info!("left");
        }
    });
    in_each_role(&name, |_, texts| {
        let span = |n| format!("B|span, n = {n}");
        let mut expected: Vec<_> = (0..SPANS).map(span).collect();
        let mut waiting = 0;
        for left in 0..SPANS {
            let younger = SPANS - left - 1;
            waiting += 1;
            // The ends of the first 8 slices are written at once. Later ends are pending until there are at least as
            // many of them as there are younger slices.
            if left < 8 || waiting >= younger {
                expected.extend((0..waiting + younger).map(|_| "E".to_owned()));
                expected.extend((left + 1..SPANS).map(span));
                waiting = 0;
            }
            expected.push("I|left".to_owned());
        }
        assert_eq!(texts, expected);
    });
}

#[test]
fn what_was_entered_while_off_is_not_begun_for_others() {
    let name = case!({
        install!();
        let on1 = on();
        let a = info_span!("a").entered();
        drop(on1);
        let b = info_span!("b, off", n = 1).entered();
        let on2 = on();
        let c = info_span!("c").entered();
        drop(a);
        info!("a left");
        drop(c);
        drop(b);
        drop(on2);
    });
    off_in_each_role(&name, |_, texts| {
        assert_eq!(texts, ["B|a", "B|c", "E", "E", "B|c", "I|a left", "E"]);
    });
}

#[test]
fn spans_are_known_by_their_subscriber_too_and_the_one_entered_last_is_left() {
    let name = case!({
        let one = tracing::Dispatch::new(AtraceSubscriber::default());
        let two = tracing::Dispatch::new(AtraceSubscriber::default());
        let of = |dispatch| tracing::dispatcher::with_default(dispatch, || info_span!("same"));
        // The spans have the same callsite and no stored data, so they have the same id.
        let (mine, other) = (of(&one), of(&two));
        assert_eq!(mine.id(), other.id());
        let inside_mine = mine.enter();
        let inside_other = other.enter();
        drop(inside_mine);
        let current = |dispatch| tracing::dispatcher::with_default(dispatch, || Span::current().id());
        assert_eq!((current(&one), current(&two)), (None, other.id()));
        drop(inside_other);
        assert_eq!((current(&one), current(&two)), (None, None));
        // If a thread has entered a span twice, the first exit belongs to the last entry.
        tracing::dispatcher::with_default(&one, || {
            let [b, x, y] = [info_span!("b"), info_span!("x"), info_span!("y")];
            let id = b.id().unwrap();
            one.enter(&id);
            let inside_x = x.enter();
            one.enter(&id);
            let inside_y = y.enter();
            one.exit(&id);
            info!("left");
            drop(inside_y);
            drop(inside_x);
            one.exit(&id);
        });
    });
    let Some(place) = Place::new(&name) else { return };
    let place = place.on();
    place.run(&name, Role::Alone);
    let expected = "B|same B|same E E B|b B|x B|b B|y E E B|y I|left E E E";
    assert_eq!(place.texts().join(" "), expected);
}

#[test]
fn deep_then_less_deep_then_deeper_again() {
    let name = case!({
        install!();
        let deep = |n| info_span!("deep", n).entered();
        let mut inside: Vec<_> = (0..100).map(deep).collect();
        let pop = |inside: &mut Vec<_>, to| (to..inside.len()).for_each(|_| drop(inside.pop()));
        pop(&mut inside, 40);
        inside.extend((100..260).map(deep));
        pop(&mut inside, 20);
        inside.extend((300..350).map(deep));
        assert_eq!(Span::current().id(), inside.last().unwrap().id());
        drop(inside.remove(60)); // Nine spans were entered after this one.
        pop(&mut inside, 0);
    });
    in_each_role(&name, |_, texts| {
        let span = |n| format!("B|deep, n = {n}");
        let mut expected: Vec<_> = (0..100).map(span).collect();
        let mut then = |ends: usize, begins: std::ops::Range<usize>| {
            expected.extend(vec!["E".to_owned(); ends]);
            expected.extend(begins.map(span));
        };
        then(60, 100..260);
        then(180, 300..350);
        then(10, 341..350);
        then(69, 0..0);
        assert_eq!(texts, expected);
    });
}

#[test]
fn slices_deep_down_end_with_their_thread_and_are_left_after_it() {
    thread_local! {
        static INSIDE: std::cell::RefCell<Vec<tracing::span::EnteredSpan>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    let name = case!({
        install!();
        let work = || {
            // `INSIDE` is dropped after the thread-local values that are first used later. So the subscriber's list of
            // deep spans no longer exists when the spans in `INSIDE` are left.
            INSIDE.with_borrow_mut(|inside| inside.push(info_span!("first").entered()));
            for n in 1..50 {
                let span = info_span!("deep", n).entered();
                INSIDE.with_borrow_mut(|inside| inside.insert(0, span));
            }
        };
        std::thread::spawn(work).join().unwrap();
    });
    let Some(place) = Place::new(&name) else { return };
    let place = place.on();
    place.run(&name, Role::Alone);
    let messages = place.messages();
    assert_eq!(balanced(&messages), 50);
    assert_eq!(messages.len(), 100);
}

#[test]
fn a_slice_whose_end_waits_ends_with_the_one_above_it() {
    let name = case!({
        install!();
        let mut inside: Vec<_> = (0..12).map(|n| Some(info_span!("span", n).entered())).collect();
        // The slices of the spans 10 and 11 begin again 8 times, which is the limit. The slice of the span 1 does not
        // begin again.
        inside[2..10].iter_mut().for_each(|span| drop(span.take()));
        drop(inside[0].take());
        info!("0 waits");
        for n in [11, 10, 1] {
            drop(inside[n].take());
        }
        info!("done");
    });
    in_each_role(&name, |_, texts| {
        let end = ["I|0 waits", "E", "E", "E", "E", "I|done"];
        assert_eq!(texts[texts.len() - end.len()..], end);
        let count = |of: &str| texts.iter().filter(|text| text.starts_with(of)).count();
        assert_eq!(count("B|"), count("E"));
    });
}

/// Tests two pending ends. To write the younger end, a single slice has to end and begin again, so this end is written.
/// To write the older end, three slices would have to end and begin again, so it is not written yet.
#[test]
fn a_slice_whose_end_goes_on_waiting_ends_with_the_one_above_it() {
    let name = case!({
        install!();
        let mut inside: Vec<_> = (0..13).map(|n| Some(info_span!("span", n).entered())).collect();
        // The slice of the youngest span, 12, begins again 8 times, which is the limit.
        inside[4..12].iter_mut().for_each(|span| drop(span.take()));
        let above = info_span!("above").entered();
        drop(inside[3].take());
        drop(above);
        drop(inside[0].take());
        info!("0 waits");
        for n in [12, 2, 1] {
            drop(inside[n].take());
        }
        info!("done");
    });
    in_each_role(&name, |_, texts| {
        let end = ["E", "E", "B|span, n = 12", "I|0 waits", "E", "E", "E", "E", "I|done"];
        assert_eq!(texts[texts.len() - end.len()..], end);
    });
}

#[test]
fn a_slice_whose_end_waits_is_not_forgotten_with_what_was_not_begun() {
    let name = case!({
        install!();
        let on1 = on();
        let waits = info_span!("waits").entered();
        drop(on1);
        let off = info_span!("off", n = 1).entered();
        let _on2 = on();
        let once = info_span!("once").entered();
        let often: Vec<_> = (0..8).map(|n| info_span!("left", n).entered()).collect();
        let above = [info_span!("c").entered(), info_span!("d").entered()];
        drop(often);
        drop(waits);
        drop(off);
        info!("waits");
        let [c, d] = above;
        drop((d, c));
        drop(once);
        info!("done");
    });
    off_in_each_role(&name, |_, texts| {
        let end = ["I|waits", "E", "E", "E", "E", "I|done"];
        assert_eq!(texts[texts.len() - end.len()..], end);
    });
}
