//! Tests the bytes that every function of the API writes, to a file and to the kernel's marker. Also tests which tags
//! enable the functions.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use atrace::control::ThisProcess;
use atrace::tracer::{GateCheck, PreparedTag, Slice};
use atrace::*;
use common::{Place, case, control};

const TAG: AtraceTag = AtraceTag::App;

/// Calls every function that writes events. Functions that accept names of several types are called with each type. No
/// event has arguments.
fn write_everything() {
    macro_rules! three {
        ($plain:ident($($before:literal,)? _ $(, $after:expr)?), $any:ident($(, $more:expr)*), $name:literal) => {
            $plain(TAG, $($before,)? $name $(, $after)?);
            $any(TAG, $($before,)? format_args!("{}-{}", $name, 1) $(, $more)*);
            let write = |name: &mut NameWriter<'_>| {
                name.push_str($name);
                name.push_str("-2");
                name.push_fmt(format_args!("{:?}", 'c'));
            };
            $any(TAG, $($before,)? write $(, $more)*);
        };
    }
    three!(atrace_begin(_), atrace_begin_args(, &[]), "begin");
    atrace_end(TAG);
    three!(atrace_async_begin(_, i32::MIN), atrace_async_begin_named(, i32::MIN), "async");
    three!(atrace_async_end(_, i32::MAX), atrace_async_end_named(, i32::MAX), "async");
    three!(
        atrace_async_for_track_begin("track", _, i32::MIN),
        atrace_async_for_track_begin_args(, i32::MIN, &[]),
        "name"
    );
    atrace_async_for_track_end(TAG, "track", i32::MIN);
    atrace_async_for_track_end(TAG, "track", i32::MAX);
    three!(atrace_instant(_), atrace_instant_args(, &[]), "instant");
    three!(atrace_instant_for_track("track", _), atrace_instant_for_track_args(, &[]), "instant");
    three!(atrace_int(_, i32::MIN), atrace_counter(, i32::MIN.into()), "int");
    atrace_int(TAG, "int", i32::MAX);
    atrace_int(TAG, "int", 0);
    three!(atrace_int64(_, i64::MIN), atrace_counter(, i64::MIN), "int64");
    atrace_int64(TAG, "int64", i64::MAX);
    atrace_int64(TAG, "int64", -1);
    atrace_f64(TAG, "float", -1.25);
    atrace_f64(TAG, "float", f64::NAN);
    static COUNT: Name = Name::new("count");
    atrace_counter(TAG, &COUNT, i64::MIN);
    drop(begin_scoped_event(TAG, "scoped"));
    drop(begin_scoped_event_args(TAG, format_args!("scoped {}", 1), &[]));
    drop(begin_scoped_event_args(TAG, |name: &mut NameWriter<'_>| name.push_str("scoped with"), &[]));
    begin(TAG, "slice").into_iter().for_each(|slice| slice.end(None));
    let slice = begin(TAG, |name: &mut NameWriter<'_>| name.push_str("slice with"));
    slice.into_iter().for_each(|slice| slice.end(None));
}

/// Begins a slice as a tracer (a library that passes events on to `atrace`) does.
fn begin(tag: AtraceTag, name: impl EventName) -> Option<Slice> {
    PreparedTag::new(tag).check().and_then(GateCheck::enabled)?.begin(name)
}

const EVERYTHING: [&str; 55] = [
    "B|P|begin",
    "B|P|begin-1",
    "B|P|begin-2'c'",
    "E|P",
    "S|P|async|-2147483648",
    "S|P|async-1|-2147483648",
    "S|P|async-2'c'|-2147483648",
    "F|P|async|2147483647",
    "F|P|async-1|2147483647",
    "F|P|async-2'c'|2147483647",
    "G|P|track|name|-2147483648",
    "G|P|track|name-1|-2147483648",
    "G|P|track|name-2'c'|-2147483648",
    "H|P|track|-2147483648",
    "H|P|track|2147483647",
    "I|P|instant",
    "I|P|instant-1",
    "I|P|instant-2'c'",
    "N|P|track|instant",
    "N|P|track|instant-1",
    "N|P|track|instant-2'c'",
    "C|P|int|-2147483648",
    "C|P|int-1|-2147483648",
    "C|P|int-2'c'|-2147483648",
    "C|P|int|2147483647",
    "C|P|int|0",
    "C|P|int64|-9223372036854775808",
    "C|P|int64-1|-9223372036854775808",
    "C|P|int64-2'c'|-9223372036854775808",
    "C|P|int64|9223372036854775807",
    "C|P|int64|-1",
    "C|P|float|-1",
    "C|P|count|-9223372036854775808",
    "B|P|scoped",
    "E|P",
    "B|P|scoped 1",
    "E|P",
    "B|P|scoped with",
    "E|P",
    "B|P|slice",
    "E|P",
    "B|P|slice with",
    "E|P",
    "B|P|on",
    "E|P",
    "B|P|again",
    "B|P|inner",
    "E|P",
    "E|P",
    "B|P|one",
    "B|P|two",
    "E|P",
    "B|P|three",
    "E|P",
    "E|P",
];

fn write_everything_and_scopes() {
    write_everything();
    {
        let _on = begin_scoped_event(TAG, "on");
    }
    {
        let _again = begin_scoped_event(TAG, "again");
        let _inner = begin_scoped_event(TAG, "inner");
    }
    let _one = begin_scoped_event(TAG, "one");
    drop(begin_scoped_event(TAG, "two"));
    drop(begin_scoped_event(TAG, "three"));
}

fn everything_by(pid: u32) -> Vec<String> {
    EVERYTHING.iter().map(|message| message.replace("|P", &format!("|{pid}"))).collect()
}

#[test]
fn every_function_writes_its_bytes_to_a_file() {
    let name = case!({ write_everything_and_scopes() });
    let place = Place::file().on();
    let ran = place.run(&name);
    assert_eq!(place.text(), everything_by(ran.pid).concat());
    assert_eq!(ran.stderr, "");
}

#[test]
fn every_function_writes_one_event_to_the_kernel() {
    let name = case!({
        assert_eq!(atrace::sink().kind(), "Tracefs");
        write_everything_and_scopes();
        assert_eq!(atrace::sink().dropped(), 0);
    });
    let Some(place) = Place::kernel(&name) else { return };
    let place = place.on();
    let ran = place.run(&name);
    assert_eq!(place.messages(), everything_by(ran.pid));
}

#[test]
fn nothing_is_written_formatted_or_called_while_off() {
    let name = case!({
        // `fmt` stores that it was called. It does not panic, because the library would catch the panic.
        static IS_FORMATTED: AtomicBool = AtomicBool::new(false);
        struct Unformatted;
        impl std::fmt::Display for Unformatted {
            fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                IS_FORMATTED.store(true, Ordering::Relaxed);
                Ok(())
            }
        }
        let write = |_: &mut NameWriter<'_>| IS_FORMATTED.store(true, Ordering::Relaxed);
        write_everything_and_scopes();
        atrace_begin_args(TAG, format_args!("{Unformatted}"), &[]);
        atrace_instant_for_track_args(TAG, "t", write, &[]);
        drop(begin_scoped_event_args(TAG, format_args!("{Unformatted}"), &[]));
        assert!(begin(TAG, write).is_none());
        // The same must hold if only other tags are enabled: nothing is written, formatted or called.
        let _switched = control().enable(AtraceTag::Camera).unwrap();
        write_everything_and_scopes();
        atrace_counter(TAG, format_args!("{Unformatted}"), 1);
        assert!(!IS_FORMATTED.load(Ordering::Relaxed));
    });
    let place = Place::file();
    place.run(&name);
    assert_eq!(place.text(), "");
}

#[test]
fn tags_let_through_what_they_name() {
    let name = case!({
        let control = control();
        let said = |tag: AtraceTag| {
            let before = std::fs::metadata(std::env::var_os("ATRACE_MARKER").unwrap()).unwrap().len();
            atrace_instant(tag, "x");
            let after = std::fs::metadata(std::env::var_os("ATRACE_MARKER").unwrap()).unwrap().len();
            assert_eq!(after > before, atrace_is_tag_enabled(tag), "{tag:?}");
            after > before
        };
        let single: Vec<AtraceTag> = (0..64).map(|bit| AtraceTag::from_bits_retain(1 << bit)).collect();

        // If no property is set, only the tag Always is enabled.
        assert_eq!(atrace_get_enabled_tags(), AtraceTag::Always);
        for tag in &single {
            assert_eq!(said(*tag), *tag == AtraceTag::Always, "{tag:?}");
        }
        assert!(!said(AtraceTag::Never));
        assert!(!said(AtraceTag::NotReady));
        assert!(said(AtraceTag::Always | AtraceTag::NotReady));
        assert!(!said(AtraceTag::from_bits_retain(u64::MAX << 28)));

        // Each tag is enabled by its bit in the flags, except App and Always, whose bits have no effect.
        for tag in single.iter().filter(|tag| AtraceTag::ValidMask.contains(**tag)) {
            let flags = control.enable(*tag).unwrap();
            assert_eq!(atrace_get_enabled_tags(), (*tag - AtraceTag::App) | AtraceTag::Always, "{tag:?}");
            for other in &single {
                let on = *other == AtraceTag::Always || (other == tag && *tag != AtraceTag::App);
                assert_eq!(said(*other), on, "{tag:?} on, {other:?}");
                assert_eq!(said(*other | AtraceTag::Never), on);
            }
            drop(flags);
        }

        // An event with several tags is written if at least one of them is enabled. App is enabled only by a pattern.
        let flags = control.enable(AtraceTag::Camera | AtraceTag::App | AtraceTag::Thermal).unwrap();
        assert!(said(AtraceTag::Camera | AtraceTag::Video));
        assert!(said(AtraceTag::Last | AtraceTag::Video));
        assert!(!said(AtraceTag::Video | AtraceTag::Audio));
        assert!(!said(AtraceTag::App));
        assert!(said(AtraceTag::App | AtraceTag::Camera));
        let app = control.enable("*").unwrap();
        assert!(said(AtraceTag::App));
        assert_eq!(
            atrace_get_enabled_tags(),
            AtraceTag::Camera | AtraceTag::App | AtraceTag::Thermal | AtraceTag::Always
        );
        drop(flags);
        assert_eq!(atrace_get_enabled_tags(), AtraceTag::App | AtraceTag::Always);
        drop(app);
        assert_eq!(atrace_get_enabled_tags(), AtraceTag::Always);
        // Bits of the flags that belong to no tag are ignored.
        let properties = atrace_sys::properties::Properties::open().unwrap();
        properties.set("debug.atrace.tags.enableflags", "0xfffffffffffffffe").unwrap();
        assert_eq!(atrace_get_enabled_tags(), AtraceTag::ValidMask - AtraceTag::App);
        assert!(!said(AtraceTag::NotReady));
        assert!(!said(AtraceTag::from_bits_retain(1 << 28)));
    });
    Place::file().run(&name);
}

#[test]
fn a_scoped_event_ends_exactly_if_it_began() {
    let name = case!({
        let control = control();
        let began_off = begin_scoped_event(TAG, "no");
        let slice_off = begin(TAG, "no");
        let switched = control.enable(ThisProcess).unwrap();
        drop(began_off); // Writes no end, because the begin was not written.
        assert!(slice_off.is_none());
        let began_on = begin_scoped_event(TAG, "yes");
        let slice_on = begin(TAG, "slice").unwrap();
        drop(switched);
        slice_on.end(None); // Writes the end, although tracing is off by now.
        drop(began_on);
        let parked = begin_scoped_event(TAG, "no");
        let _switched = control.enable(ThisProcess).unwrap();
        let began_on = begin_scoped_event(TAG, "parked");
        atrace_set_tracing_enabled(false);
        drop(parked);
        drop(began_on);
        assert_eq!(
            std::panic::catch_unwind(|| {
                atrace_set_tracing_enabled(true);
                let _unwound = begin_scoped_event(TAG, "unwound");
                std::panic::resume_unwind(Box::new(7));
            })
            .unwrap_err()
            .downcast_ref(),
            Some(&7)
        );
        std::mem::forget(begin_scoped_event(TAG, "forgotten"));
    });
    let place = Place::file();
    let pid = place.run(&name).pid;
    let expected = "B|P|yesB|P|sliceE|PE|PB|P|parkedE|PB|P|unwoundE|PB|P|forgotten";
    let expected = expected.replace("|P", &format!("|{pid}"));
    assert_eq!(place.text(), expected);
}

mod methods {
    //! Uses `trace_method!` in a module in which the crate `atrace` has another name, and in which a module named
    //! `atrace` hides the crate.

    extern crate atrace as renamed;
    use super::common;
    use renamed::AtraceTag;

    #[allow(dead_code)]
    mod atrace {
        //! A module that hides the crate `atrace`. It contains no items, so the macro would fail if it used this
        //! module.
    }
    #[allow(dead_code)]
    struct Option;

    pub(crate) fn function() {
        renamed::trace_method!(AtraceTag::App);
    }

    pub(crate) struct Type;

    impl Type {
        pub(crate) fn method(&self) -> u32 {
            renamed::trace_method!(AtraceTag::App,);
            7
        }

        pub(crate) fn generic<T>(&self, value: T) -> T {
            renamed::trace_method!(AtraceTag::App | AtraceTag::Camera);
            value
        }
    }

    pub(crate) struct Generic<T>(pub(crate) T);

    impl<T: Clone> Generic<T> {
        pub(crate) fn cloned(&self) -> T {
            renamed::trace_method!(AtraceTag::App);
            self.0.clone()
        }
    }

    pub(crate) trait Trait {
        fn provided(&self) {
            renamed::trace_method!(AtraceTag::App);
        }
        fn required(&self);
    }

    impl Trait for Type {
        fn required(&self) {
            renamed::trace_method!(AtraceTag::App);
        }
    }

    impl<T> Trait for Generic<T> {
        fn required(&self) {
            renamed::trace_method!(AtraceTag::App);
        }
    }

    pub(crate) fn closures() {
        let outer = || {
            renamed::trace_method!(AtraceTag::App);
            let inner = || {
                renamed::trace_method!(AtraceTag::App);
            };
            inner();
        };
        outer();
    }

    pub(crate) async fn asynchronous() {
        renamed::trace_method!(AtraceTag::App);
        async {
            renamed::trace_method!(AtraceTag::App);
        }
        .await;
    }

    pub(crate) fn twice() {
        renamed::trace_method!(AtraceTag::App);
        renamed::trace_method!(AtraceTag::App);
    }

    pub(crate) const fn tag() -> AtraceTag {
        AtraceTag::App
    }

    pub(crate) fn returns(early: bool) -> Result<u8, ()> {
        renamed::trace_method!(if early { return Err(()) } else { tag() });
        Ok(common::pid().to_string().len() as u8)
    }
}

#[test]
fn a_method_is_traced_under_its_path() {
    let name = case!({
        use methods::Trait as _;
        methods::function();
        methods::Type.method();
        methods::Type.generic(vec![1]);
        methods::Generic(1u8).cloned();
        methods::Type.provided();
        methods::Type.required();
        methods::Generic("x").required();
        methods::closures();
        let mut future = std::pin::pin!(methods::asynchronous());
        assert_eq!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(()));
        methods::twice();
        assert!(methods::returns(true).is_err());
        assert!(methods::returns(false).is_ok());
    });
    let place = Place::file().on();
    let pid = place.run(&name).pid;
    let one = |path: &str| format!("B|{pid}|wire::methods::{path}E|{pid}");
    let nested = |path: &str| one(&(path.to_owned() + &one(path)));
    // The displayed form of a type parameter depends on the compiler: `Generic<_>` or `Generic<T>`.
    let text = place.text().replace("Generic<_>", "Generic<T>");
    let expected = [
        one("function"),
        one("Type::method"),
        one("Type::generic"),
        one("Generic<T>::cloned"),
        one("Trait::provided"),
        format!("B|{pid}|<wire::methods::Type as wire::methods::Trait>::requiredE|{pid}"),
        format!("B|{pid}|<wire::methods::Generic<T> as wire::methods::Trait>::requiredE|{pid}"),
        nested("closures"),
        nested("asynchronous"),
        nested("twice"),
        one("returns"),
    ];
    assert_eq!(text, expected.concat());
}
