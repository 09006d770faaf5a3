//! Tests the messages that are written for events.

mod common;

use std::cell::Cell;
use std::fmt;

use common::{Place, Role, case, in_each_role, install, on};
use tracing::{Level, debug, error, event, info, info_span, trace, warn};

/// A value whose formatting calls a closure.
struct Doing<F: Fn(&mut fmt::Formatter<'_>) -> fmt::Result>(F);

impl<F: Fn(&mut fmt::Formatter<'_>) -> fmt::Result> fmt::Debug for Doing<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.0)(f)
    }
}

#[test]
fn an_event_is_its_message_and_its_fields_in_the_form_of_aosp() {
    let name = case!({
        install!();
        info!("bench info event");
        info!(arg1 = 123, arg2 = "argument", arg3 = ?vec![1, 2, 3, 4], arg4 = "last", "bench info event");
        info!("with {} of {:?}", 2, "values");
        trace!(a = -1_i64, b = u64::MAX, c = i128::MIN, d = u128::MAX, "integers");
        debug!(yes = true, no = false, "bools");
        warn!(one = 1.0, tiny = 1e-7, huge = 1e300, nan = f64::NAN, half = 0.5_f32, "floats");
        error!(shown = %"text", debugged = ?"text", raw = "a \"quote\" \\", "strings");
        let failure = "x".parse::<i32>().unwrap_err();
        error!(error = &failure as &dyn std::error::Error, "errors");
        info!(only = 1, fields = "two");
        info!(a.b = 1, "dotted" = 2, name = "n", empty = tracing::field::Empty);
        info!(message = "explicit", later = 1);
        info!("");
        info!(parent: None, "no parent");
        info!(target: "elsewhere", none = Option::<i32>::None, some = Some(3), unit = ?(), char = ?'c');
        event!(Level::WARN, bytes = ?[1_u8, 2], x = ?Some(Ok::<_, ()>(1)));
    });
    in_each_role(&name, |_, texts| {
        assert_eq!(
            texts,
            [
                "I|bench info event",
                "I|bench info event, arg1 = 123, arg2 = \"argument\", arg3 = [1, 2, 3, 4], arg4 = \"last\"",
                "I|with 2 of \"values\"",
                "I|integers, a = -1, b = 18446744073709551615, c = -170141183460469231731687303715884105728, \
                 d = 340282366920938463463374607431768211455",
                "I|bools, yes = true, no = false",
                "I|floats, one = 1.0, tiny = 1e-7, huge = 1e300, nan = NaN, half = 0.5",
                "I|strings, shown = text, debugged = \"text\", raw = \"a \"quote\" \\\"",
                "I|errors, error = invalid digit found in string",
                "I|only = 1, fields = \"two\"",
                "I|a.b = 1, dotted = 2, name = \"n\"",
                "I|explicit, later = 1",
                "I|INFO event",
                "I|no parent",
                "I|some = 3, unit = (), char = 'c'",
                "I|bytes = [1, 2], x = Some(Ok(1))",
            ]
        );
    });
}

#[test]
fn without_fields_an_event_is_its_message_or_its_level() {
    let name = case!({
        install!(.without_fields());
        info!(arg1 = 123, "message");
        info!(arg1 = 123, message = "of &str");
        debug!(arg1 = 123);
        warn!(counter.n = 3, a = 1, "counted");
    });
    in_each_role(&name, |_, texts| {
        assert_eq!(texts, ["I|message", "I|of &str", "I|DEBUG event", "C|n|3", "I|counted"]);
    });
}

#[test]
fn integers_under_counter_are_counters() {
    let name = case!({
        install!();
        info!(counter.queue = 7);
        info!(counter.queue = -7, why = "down", "changed");
        info!(counter.a = 1_u64, counter.b.c = 2_i128, counter.max = u64::MAX, counter.min = i128::MIN);
        info!(counter.text = "no integer", counter.float = 1.5);
        info!(counter = 5, encounter.x = 1);
    });
    in_each_role(&name, |_, texts| {
        assert_eq!(
            texts,
            [
                "C|queue|7",
                "C|queue|-7",
                "I|changed, why = \"down\"",
                "C|a|1",
                "C|b.c|2",
                "C|max|9223372036854775807",
                "C|min|-9223372036854775808",
                "I|counter.text = \"no integer\", counter.float = 1.5",
                "I|counter = 5, encounter.x = 1",
            ]
        );
    });
}

#[test]
fn text_is_cut_at_the_limit_and_can_forge_nothing() {
    let name = case!({
        install!();
        info!(long = "é".repeat(100_000), never = 1, "cut");
        info!(pipe = "a|b", "line\nbreak \0 | \u{7f} </script>");
        info!(parts = ?["a\u{1}|b", "</scr", "ipt>"], "{}{}", "</scr", "ipt>");
        let _span = info_span!("a|b", "c|d" = "e\n|f").entered();
        // When the message is full, the formatting of a value with endless text ends with an error.
        let asked = Cell::new(0);
        let endless = Doing(|f| {
            for _ in 0..1_000_000 {
                asked.set(asked.get() + 1);
                f.write_str("0123456789")?;
            }
            Ok(())
        });
        info!(?endless);
        assert!((100..110).contains(&asked.get()), "{}", asked.get());
    });
    in_each_role(&name, |_, texts| {
        // The message also contains `I|`, the process id and another `|`.
        assert!((1005..1023).contains(&texts[0].len()), "{}", texts[0].len());
        assert!(texts[0].starts_with("I|cut, long = \"éé") && texts[0].ends_with("éé"));
        assert_eq!(texts[1], "I|line?break ? / ? ?/script>, pipe = \"a/b\"");
        assert_eq!(texts[2], "I|?/script>, parts = [\"a\\u{1}/b\", \"</scr\", \"ipt>\"]");
        assert_eq!(texts[3], "B|a|b, c|d = \"e?|f\"");
        assert!(texts[4].starts_with("I|endless = 0123456789012"));
        assert_eq!(texts[5], "E");
    });
}

/// Returns texts that could damage a trace: texts with special characters, texts of the lengths at which another method
/// of copying is used, and texts much longer than a message.
fn hostile() -> Vec<String> {
    let parts =
        ["", " ", "a", "|", "\n", "\0", "\u{7f}", "<", "</script>", "é", "😀", "\u{1b}[0m", "\"", "\\"];
    let pairs = parts.iter().flat_map(|one| parts.iter().map(move |other| format!("{one}{other}{one}")));
    let long = [1, 2, 3, 4, 6, 7, 12, 13, 25, 180, 199, 200, 201, 204, 1 << 18].map(|n| "é|x\n".repeat(n));
    pairs.chain(long).collect()
}

#[test]
fn hostile_values_are_written_as_the_plain_way_has_them() {
    let name = case!({
        install!();
        for value in hostile() {
            let value = value.as_str();
            info!(text = value, debug = ?value, shown = %value, int = i128::MIN, yes = true, "{value}");
            info_span!("a|b", text = value, shown = %value, last = 7).in_scope(|| ());
        }
    });
    let plain = |text: String, bar: char| {
        let replaced = |c| match c {
            '\0'..='\x1f' | '\x7f' => '?',
            '|' => bar,
            c => c,
        };
        text.chars().map(replaced).collect::<String>().replace("</script>", "?/script>")
    };
    in_each_role(&name, |_, texts| {
        let values = hostile();
        assert_eq!(texts.len(), 3 * values.len());
        for (value, texts) in values.iter().zip(texts.chunks(3)) {
            let first = if value.is_empty() { String::new() } else { format!("{value}, ") };
            let int = i128::MIN;
            let event = format!(
                "I|{first}text = \"{value}\", debug = {value:?}, shown = {value}, int = {int}, yes = true"
            );
            let span = format!("B|a|b, text = \"{value}\", shown = {value}, last = 7");
            for (text, plain) in [
                (&texts[0], "I|".to_owned() + &plain(event[2..].to_owned(), '/')),
                (&texts[1], plain(span, '|')),
            ] {
                // The message also contains the process id and a bar. A text is never cut in the middle of a character.
                let is_cut = text.len() > 1023 - 12 && plain.starts_with(text.as_str());
                assert!(is_cut || *text == plain, "{text}\n{plain}");
            }
            assert_eq!(texts[2], "E");
        }
    });
}

#[test]
fn a_value_that_panics_ends_the_event_and_nothing_else() {
    let name = case!({
        install!();
        std::panic::set_hook(Box::new(|_| ()));
        let bad = Doing(|f| {
            f.write_str("half")?;
            panic!("not today");
        });
        info!(a = 1, ?bad, c = 3, "before");
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("nor when dropped");
            }
        }
        let worse = Doing(|_| std::panic::panic_any(Bomb));
        info!(?worse);
        struct ThrowsBomb;
        impl Drop for ThrowsBomb {
            fn drop(&mut self) {
                std::panic::panic_any(Bomb);
            }
        }
        let worst = Doing(|_| std::panic::panic_any(ThrowsBomb));
        info!(?worst);
        let span = info_span!("span", ?bad, later = tracing::field::Empty);
        span.in_scope(|| info!("inside"));
        span.record("later", tracing::field::debug(&worse));
        span.in_scope(|| info!("after"));
        // Formats a value that panics while another panic is unwinding.
        struct Last;
        impl Drop for Last {
            fn drop(&mut self) {
                let bad = Doing(|_| panic!("again"));
                info!(?bad, "unwinding");
            }
        }
        let unwound = std::panic::catch_unwind(|| {
            let _last = Last;
            let _span = info_span!("unwound").entered();
            panic!("first");
        });
        assert!(unwound.is_err());
    });
    in_each_role(&name, |_, texts| {
        assert_eq!(
            texts,
            [
                "I|before, a = 1, bad = half<panicked>",
                "I|worse = <panicked>",
                "I|worst = <panicked>",
                "B|span, bad = half<panicked>",
                "I|inside",
                "E",
                "B|span, bad = half<panicked>, later = <panicked>",
                "I|after",
                "E",
                "B|unwound",
                "E",
                "I|unwinding, bad = <panicked>",
            ]
        );
    });
}

#[test]
fn a_value_may_trace_while_it_is_formatted() {
    struct Endless;
    impl fmt::Debug for Endless {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            info!(itself = ?self, "again");
            f.write_str("done")
        }
    }
    let name = case!({
        install!();
        let tracing = Doing(|f| {
            let _span = info_span!("in debug", x = 1).entered();
            info!("from debug");
            f.write_str("value")
        });
        info!(?tracing, "outer");
        let span = info_span!("span", ?tracing, later = tracing::field::Empty);
        let inside = span.enter();
        let entering = Doing(|f| {
            span.in_scope(|| info!("recording"));
            span.record("later", 0);
            f.write_str("value")
        });
        span.record("later", tracing::field::debug(&entering));
        drop(inside);
        span.in_scope(|| info!(endless = ?Endless, "start"));
    });
    in_each_role(&name, |_, texts| {
        let inner = ["B|in debug, x = 1", "I|from debug", "E"].map(str::to_owned);
        let mut expected = inner.to_vec();
        expected.push("I|outer, tracing = value".into());
        expected.extend(inner);
        let name = "B|span, tracing = value";
        expected.extend([name, name, "I|recording", "E", "E"].map(str::to_owned));
        expected.push("B|span, tracing = value, later = 0, later = value".into());
        assert_eq!(texts[..expected.len()], expected);
        // A value that traces itself while it is formatted would never end. So from a certain depth on, fields are left
        // out of the messages.
        assert_eq!(
            texts[expected.len()..],
            [
                "I|INFO event",
                "I|again, itself = done",
                "I|again, itself = done",
                "I|again, itself = done",
                "I|start, endless = done",
                "E"
            ]
        );
    });
}

#[test]
fn records_of_log_are_events_without_their_origin() {
    let name = case!({
        use tracing_subscriber::util::SubscriberInitExt as _;
        match common::role() {
            Role::Alone => atrace_subscriber::AtraceSubscriber::default().init(),
            _ => {
                use tracing_subscriber::layer::SubscriberExt as _;
                tracing_subscriber::registry().with(atrace_subscriber::AtraceLayer::default()).init();
            }
        }
        log::info!("from {}", "log");
        log::error!(target: "other", "with a target");
        info!(target: "log", { log.file = "x" }, "not from log");
    });
    in_each_role(&name, |_, texts| {
        assert_eq!(texts, ["I|from log", "I|with a target", "I|not from log, log.file = \"x\""]);
    });
}

#[test]
fn nothing_is_written_or_formatted_while_off() {
    let name = case!({
        install!();
        let formatted = Cell::new(0);
        let value = Doing(|f| {
            formatted.set(formatted.get() + 1);
            f.write_str("value")
        });
        info!(?value, "off");
        let span = info_span!("span", ?value);
        span.in_scope(|| info!(counter.x = 1));
        span.record("value", tracing::field::debug(&value));
        assert_eq!(formatted.get(), 0);
        let on = on();
        info!(?value, "on");
        assert_eq!(formatted.get(), 1);
        drop(on);
        info!(?value, "off again");
        assert_eq!(formatted.get(), 1);
    });
    common::off_in_each_role(&name, |_, texts| assert_eq!(texts, ["I|on, value = value"]));
}

#[test]
fn each_tag_is_switched_by_itself() {
    let name = case!({
        use atrace::AtraceTag;
        use tracing_subscriber::prelude::*;
        let control = atrace::control::Control::open().unwrap();
        let database = atrace_subscriber::AtraceSubscriber::new(AtraceTag::Database);
        let network = atrace_subscriber::AtraceLayer::new(AtraceTag::Network);
        tracing::subscriber::set_global_default(tracing_subscriber::registry().with(database).with(network))
            .unwrap();
        let span = info_span!("span", n = 1);
        let inside = span.enter();
        let switched = control.enable(AtraceTag::Database).unwrap();
        info!("database");
        drop(inside);
        span.in_scope(|| ());
        switched.restore().unwrap();
        let _switched = control.enable(AtraceTag::Network | AtraceTag::Database).unwrap();
        info_span!("both", n = 2).in_scope(|| ());
    });
    let Some(place) = Place::new(&name) else { return };
    place.run(&name, Role::Layer);
    assert_eq!(place.texts(), ["I|database", "B|span", "E", "B|both, n = 2", "B|both, n = 2", "E", "E"]);
}
