//! Tests spans that cross threads and `await`s, and the async slices that show the whole lives of spans.

mod common;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use atrace_subscriber::AsyncSpans;
use common::{Place, balanced, case, each_role, in_each_role, install, off_in_each_role, on};
use tracing::{Instrument as _, info, info_span, instrument};

/// Runs a future on so many threads that it is likely to move between them.
fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_time()
        .build()
        .unwrap()
        .block_on(future)
}

#[instrument]
async fn task(number: u32) {
    for step in 0..10 {
        info!(step);
        tokio::task::yield_now().await;
        // Yields first, so that there are two polls: a sleep may be over at its first poll.
        let wait = async {
            tokio::task::yield_now().await;
            tokio::time::sleep(Duration::from_micros(200)).await;
        };
        wait.instrument(info_span!("wait", number, step)).await;
    }
}

#[test]
fn each_poll_is_a_slice_on_its_thread() {
    let name = case!({
        install!();
        block_on(async {
            // Two polls that wait for each other are on two threads, however busy the machine is.
            let meeting = Arc::new(Barrier::new(2));
            let meet = |_| {
                let meeting = Arc::clone(&meeting);
                tokio::spawn(async move { info_span!("meet").in_scope(|| meeting.wait().is_leader()) })
            };
            let meetings: Vec<_> = (0..2).map(meet).collect();
            let tasks: Vec<_> = (0..20).map(|number| tokio::spawn(task(number))).collect();
            for task in meetings {
                task.await.unwrap();
            }
            for task in tasks {
                task.await.unwrap();
            }
        });
    });
    each_role(&name, |role, place| {
        let place = place.on();
        place.run(&name, role);
        let messages = place.messages();
        balanced(&messages);
        let threads: HashSet<_> = messages.iter().map(|message| message.tid).collect();
        assert!(threads.len() > 1, "all on one thread");
        assert_eq!(messages.iter().filter(|message| message.text.starts_with("I|step = ")).count(), 200);
        for number in 0..20 {
            // Each task is polled at least twice per step. Each poll of the task, and its drop, is a slice with the
            // task's name.
            let name = format!("B|task, number = {number}");
            assert!(messages.iter().filter(|message| message.text == name).count() >= 20);
            for step in 0..10 {
                let name = format!("B|wait, number = {number}, step = {step}");
                assert!(messages.iter().filter(|message| message.text == name).count() >= 2);
            }
        }
    });
}

/// Checks that every async slice ends once, with the cookie of its begin, and that no two open slices have the same
/// cookie. Returns the number of slices.
fn ended(texts: &[String]) -> usize {
    let mut open = HashMap::new();
    let mut begun = 0;
    for text in texts {
        let parts: Vec<_> = text.split('|').collect();
        match parts[..] {
            ["G", track, name, cookie] => {
                begun += 1;
                assert!(open.insert((track, cookie), name).is_none(), "{text}: open already");
            }
            ["H", track, cookie] => assert!(open.remove(&(track, cookie)).is_some(), "{text}: not open"),
            _ => {}
        }
    }
    assert!(open.is_empty(), "never ended: {open:?}");
    begun
}

#[test]
fn a_life_is_an_async_slice_beside_the_polls() {
    let name = case!({
        install!(.with_async_spans("", AsyncSpans::Beside));
        block_on(async {
            let tasks: Vec<_> = (0..20).map(|number| tokio::spawn(task(number))).collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
    });
    in_each_role(&name, |_, texts| {
        assert_eq!(ended(&texts), 20 + 20 * 10);
        assert!(texts.iter().any(|text| text.starts_with("G|asynchronous|task, number = 3|")));
        assert!(texts.iter().any(|text| text == "B|task, number = 3"));
    });
}

#[test]
fn a_life_instead_of_the_polls() {
    let name = case!({
        install!(.with_async_spans("", AsyncSpans::Instead));
        let span = info_span!("no|fields");
        span.in_scope(|| info!("inside"));
        span.in_scope(|| ());
        let clone = span.clone();
        drop(span);
        info!("still open");
        drop(clone);
    });
    in_each_role(&name, |_, texts| {
        let cookie = texts[0].rsplit('|').next().unwrap();
        let begin = format!("G|asynchronous|no/fields|{cookie}");
        assert_eq!(texts, [&begin, "I|inside", "I|still open", &format!("H|asynchronous|{cookie}")]);
    });
}

#[test]
fn targets_and_fields_choose() {
    let name = case!({
        install!(
            .with_async_spans("net", AsyncSpans::Instead)
            .with_async_spans("net::http".to_owned(), AsyncSpans::Beside)
        );
        let enter = |span: tracing::Span| span.in_scope(|| ());
        enter(info_span!(target: "net", "net"));
        enter(info_span!(target: "net::http::client", "http", n = 1));
        enter(info_span!(target: "network", "other"));
        enter(info_span!("chosen", n = 1, atrace.track = "requests|1", m = 2));
        enter(info_span!("empty", atrace.track = tracing::field::Empty));
        enter(info_span!(target: "net", "renamed", "atrace.track" = "requests"));
    });
    in_each_role(&name, |_, texts| {
        ended(&texts);
        let texts: Vec<_> = texts
            .iter()
            .map(|text| match text.as_bytes()[0] {
                b'G' | b'H' => text.rsplit_once('|').unwrap().0,
                _ => text,
            })
            .collect();
        assert_eq!(
            texts,
            [
                "G|net|net",
                "H|net",
                "G|net::http::client|http, n = 1",
                "B|http, n = 1",
                "E",
                "H|net::http::client",
                "B|other",
                "E",
                "G|requests/1|chosen, n = 1, m = 2",
                "B|chosen, n = 1, m = 2",
                "E",
                "H|requests/1",
                "B|empty",
                "E",
                "G|requests|renamed",
                "H|requests",
            ]
        );
    });
}

#[test]
fn async_slices_end_exactly_where_they_began_whatever_is_switched() {
    let name = case!({
        install!(.with_async_spans("", AsyncSpans::Instead));
        let off = info_span!("made while off", n = 1);
        let switched = on();
        let ended_off = info_span!("ends while off", n = 1, later = tracing::field::Empty);
        ended_off.record("later", "text");
        off.in_scope(|| ());
        drop(switched);
        ended_off.in_scope(|| ());
        drop(ended_off);
        let off2 = info_span!("off");
        let _on = on();
        drop(off);
        drop(off2);
    });
    off_in_each_role(&name, |_, texts| {
        assert_eq!(ended(&texts), 1);
        assert!(texts[0].starts_with("G|asynchronous|ends while off, n = 1|"), "{texts:?}");
        // A field that is recorded later can't be added to a slice that has begun. It becomes an instant on the
        // slice's track.
        assert_eq!(texts[1], "N|asynchronous|ends while off, later = \"text\"");
        assert_eq!(texts[2..4], ["B|made while off", "E"]);
        assert!(texts[4].starts_with("H|asynchronous|"));
        assert_eq!(texts.len(), 5);
    });
}

#[test]
fn cookies_do_not_collide_among_subscribers_and_threads() {
    let name = case!({
        let dispatches: Vec<_> =
            (0..2).map(|_| tracing::Dispatch::new(atrace_subscriber::AtraceSubscriber::default())).collect();
        let threads: Vec<_> = (0..8)
            .map(|n| {
                let dispatch = dispatches[n % 2].clone();
                std::thread::spawn(move || {
                    let _default = tracing::dispatcher::set_default(&dispatch);
                    for _ in 0..50 {
                        let spans: Vec<_> =
                            (0..10).map(|_| info_span!("span", atrace.track = "one")).collect();
                        std::thread::yield_now();
                        drop(spans);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
    let Some(place) = Place::new(&name) else { return };
    let place = place.on();
    place.run(&name, common::Role::Alone);
    assert_eq!(ended(&place.texts()), 8 * 50 * 10);
}
