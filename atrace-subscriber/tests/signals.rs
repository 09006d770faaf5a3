//! Tests signal handlers that create spans and may interrupt the code of this crate at any point.
//!
//! Signal handlers may create spans only with `AtraceSubscriber` alone: a registry has a list for each thread, and
//! panics if a handler uses the registry while it changes that list.

#![cfg(all(target_os = "linux", target_env = "gnu"))]
#![allow(unsafe_code, reason = "signal handlers are installed")]

mod common;

use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};

use common::{Place, Role, balanced, case};
use tracing::{Span, info_span};

const BUFFER_KB: u64 = 32 << 10;

fn install(signal: libc::c_int, handler: extern "C" fn(libc::c_int)) {
    tracing::subscriber::set_global_default(atrace_subscriber::AtraceSubscriber::default()).unwrap();
    // Calls the handler once to register its callsites, because `tracing` takes a lock for a new callsite.
    handler(signal);
    // SAFETY: the handler only traces and counts, which this file tests.
    unsafe {
        let mut action = std::mem::zeroed::<libc::sigaction>();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

fn place(name: &str) -> Option<Place> {
    let place = Place::new(name)?;
    place.instance().set_buffer_kb(BUFFER_KB).unwrap();
    Some(place.on())
}

/// Returns the program's own messages, without those of slices that the signal handler has written.
#[cfg(target_arch = "x86_64")]
fn without_handler(messages: &[common::Message]) -> Vec<&str> {
    let mut texts: Vec<&str> = Vec::new();
    let mut inside = 0;
    for message in messages {
        match message.text.as_str() {
            text if text.starts_with("B|handler") => inside += 1,
            "E" if inside > 0 => inside -= 1,
            text => {
                assert_eq!(inside, 0, "the handler was left by {text}");
                texts.push(text);
            }
        }
    }
    texts
}

static INTERRUPTED: AtomicU64 = AtomicU64::new(0);

/// The kernel's number of the timer, which may be 0.
static TIMER: AtomicPtr<libc::c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Makes the timer raise one signal. The signal handler sets the timer again, so the program makes progress even if the
/// handler is slow.
fn set_timer() {
    let once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let soon = libc::timespec { tv_sec: 0, tv_nsec: 11_000 };
    let value = libc::itimerspec { it_interval: once, it_value: soon };
    // SAFETY: the value is initialized. Without a timer, the kernel returns an error.
    unsafe { libc::timer_settime(TIMER.load(Ordering::Relaxed), 0, &value, std::ptr::null_mut()) };
}

/// A signal handler that enters spans, and leaves them alternately in the order of their entry and in reverse.
extern "C" fn spans(_: libc::c_int) {
    let number = INTERRUPTED.fetch_add(1, Ordering::Relaxed);
    let outer = info_span!("handler").entered();
    let inner = info_span!("handler, inner", number).entered();
    if number.is_multiple_of(2) {
        drop(inner);
        drop(outer);
    } else {
        drop(outer);
        drop(inner);
    }
    // Limits the number of signals, because the ring buffer must have room for all messages.
    if number < 20_000 {
        set_timer();
    }
}

/// Returns the number of interruptions, which the test case has printed into `said`.
fn interruptions(said: &str) -> usize {
    let note = said.lines().find_map(|line| line.split_once("NOTE ")).unwrap().1;
    eprintln!("{note}");
    note.split_once(' ').unwrap().0.parse().unwrap()
}

#[test]
fn a_storm_of_signals_leaves_slices_balanced() {
    const SPANS: usize = 30_000;
    let name = case!({
        install(libc::SIGUSR1, spans);
        // SAFETY: the event is initialized, and the timer belongs to this thread. It is deleted below.
        unsafe {
            let mut event = std::mem::zeroed::<libc::sigevent>();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = libc::SIGUSR1;
            event.sigev_notify_thread_id = libc::syscall(libc::SYS_gettid) as libc::c_int;
            let mut timer = std::mem::zeroed();
            assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer), 0);
            TIMER.store(timer, Ordering::Relaxed);
        }
        set_timer();
        for n in 0..SPANS / 3 {
            let a = info_span!("a").entered();
            let b = info_span!("b", n).entered();
            let c = info_span!("c").entered();
            drop(if n.is_multiple_of(16) { (c, b, a) } else { (a, b, c) });
        }
        // SAFETY: the timer was created above.
        unsafe { libc::timer_delete(TIMER.load(Ordering::Relaxed)) };
        assert!(Span::current().is_none());
        println!("NOTE {} interruptions", INTERRUPTED.load(Ordering::Relaxed));
    });
    let Some(place) = place(&name) else { return };
    assert!(interruptions(&place.run(&name, Role::Alone)) > 1000);
    let messages = place.messages();
    let begins = balanced(&messages);
    assert!(begins > SPANS, "{begins}");
}

#[cfg(target_arch = "x86_64")]
extern "C" fn one_span(_: libc::c_int) {
    INTERRUPTED.fetch_add(1, Ordering::Relaxed);
    info_span!("handler").in_scope(|| assert!(Span::current().id().is_some()));
}

/// Enters and leaves spans inside `around` other spans. Leaves them in reverse order, in another order, and, if there
/// are many, in the order of their entry, so that some ends are pending.
#[cfg(target_arch = "x86_64")]
fn stepped(around: usize) {
    install(libc::SIGTRAP, one_span);
    let dispatch = tracing::dispatcher::get_default(Clone::clone);
    let spans = [info_span!("a"), info_span!("b", n = 1), info_span!("c")];
    let [a, b, c] = spans.each_ref().map(|span| span.id().unwrap());
    let around: Vec<_> = (0..around).map(|_| info_span!("around").entered()).collect();
    common::step_by_step(|| {
        for id in [&a, &b, &c] {
            dispatch.enter(id);
        }
        for id in [&b, &c, &a] {
            dispatch.exit(id);
        }
    });
    assert_eq!(Span::current().metadata().unwrap().name(), "around");
    let inside: Vec<_> = (0..12).map(|n| info_span!("first in", n)).collect();
    let ids: Vec<_> = inside.iter().map(|span| span.id().unwrap()).collect();
    ids.iter().for_each(|id| dispatch.enter(id));
    ids[..8].iter().for_each(|id| dispatch.exit(id));
    // Leaves two spans. The end of the first slice is pending until the second slice ends, so both end together.
    common::step_by_step(|| ids[8..10].iter().for_each(|id| dispatch.exit(id)));
    ids[10..].iter().for_each(|id| dispatch.exit(id));
    assert_eq!(Span::current().metadata().unwrap().name(), "around");
    drop(around);
    assert!(Span::current().is_none());
    println!("NOTE {} interruptions", INTERRUPTED.load(Ordering::Relaxed));
}

#[cfg(target_arch = "x86_64")]
fn is_whole(name: &str, around: usize) {
    let Some(place) = place(name) else { return };
    assert!(interruptions(&place.run(name, Role::Alone)) > 1000);
    let messages = place.messages();
    balanced(&messages);
    let texts = without_handler(&messages);
    let entered = [vec!["B|around"; around], vec!["B|a", "B|b, n = 1", "B|c"]].concat();
    assert_eq!(texts[..around + 3], entered);
    assert_eq!(texts[around + 3..][..5], ["E", "E", "B|c", "E", "E"]);
    assert_eq!(texts[texts.len() - around..], vec!["E"; around]);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_handler_may_run_between_any_two_instructions() {
    let name = case!({ stepped(5) });
    is_whole(&name, 5);
}

/// Tests a depth at which the fixed part of the span stack is full, and a part on the heap is created.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_handler_may_run_between_any_two_instructions_deep_down() {
    let name = case!({ stepped(30) });
    is_whole(&name, 30);
}

/// The id of the thread whose next registration of a thread-local destructor must be interrupted by a signal, or 0.
/// Registrations by other threads, such as those of the test harness, do not count.
static ARMED: AtomicI32 = AtomicI32::new(0);
/// The number of thread-local destructors that the thread in `ARMED` has registered since `ARMED` was set.
static NOTED: AtomicU64 = AtomicU64::new(0);

/// Runs `body`, in which a signal interrupts the calling thread's first registration of a thread-local destructor.
fn armed<R>(body: impl FnOnce() -> R) -> R {
    ARMED.store(this_thread(), Ordering::Relaxed);
    let result = body();
    ARMED.store(0, Ordering::Relaxed);
    result
}

fn this_thread() -> i32 {
    // SAFETY: the call has no arguments, and can't fail.
    unsafe { libc::gettid() }
}

/// Replaces the C library's function, which registers a destructor for a thread-local value. Raises a signal just
/// before the thread's first registration since `ARMED` was set.
///
/// # Safety
/// The caller must obey the rules of the C library's function, which gets all arguments.
#[unsafe(no_mangle)]
unsafe extern "C" fn __cxa_thread_atexit_impl(
    destructor: *mut libc::c_void,
    object: *mut libc::c_void,
    library: *mut libc::c_void,
) -> libc::c_int {
    type Note = unsafe extern "C" fn(*mut libc::c_void, *mut libc::c_void, *mut libc::c_void) -> libc::c_int;
    if ARMED.load(Ordering::Relaxed) == this_thread() && NOTED.fetch_add(1, Ordering::Relaxed) == 0 {
        // SAFETY: the handler was installed.
        unsafe { libc::raise(libc::SIGUSR1) };
    }
    // SAFETY: `next` is the C library's function of that name, which has this type. It gets the caller's arguments.
    unsafe {
        let next = libc::dlsym(libc::RTLD_NEXT, c"__cxa_thread_atexit_impl".as_ptr());
        std::mem::transmute::<*mut libc::c_void, Note>(next)(destructor, object, library)
    }
}

extern "C" fn short(_: libc::c_int) {
    INTERRUPTED.fetch_add(1, Ordering::Relaxed);
    info_span!("handler").in_scope(|| {});
}

/// Tests spans that are left in another order than the reverse of their entry: no destructor must be registered,
/// because a handler may leave spans like that, too.
#[test]
fn spans_left_in_another_order_note_no_destructor() {
    let name = case!({
        install(libc::SIGUSR1, short);
        let shallow = || {
            let [first, second] = ["first", "second"].map(|name| info_span!("span", name));
            first.in_scope(|| {});
            armed(|| {
                let (first, second) = (first.enter(), second.enter());
                drop(first);
                drop(second);
            });
        };
        std::thread::spawn(shallow).join().unwrap();
        assert_eq!(NOTED.load(Ordering::Relaxed), 0);
    });
    let Some(place) = place(&name) else { return };
    place.run(&name, Role::Alone);
    balanced(&place.messages());
}

/// Tests a handler that interrupts the registration of a destructor: the destructor must not be registered twice,
/// because it would run twice.
#[test]
fn a_handler_notes_no_destructor_that_is_being_noted() {
    let name = case!({
        install(libc::SIGUSR1, short);
        let before = INTERRUPTED.load(Ordering::Relaxed);
        let deep_down = || {
            let inside: Vec<_> = (0..32).map(|_| info_span!("around").entered()).collect();
            let last = info_span!("last");
            let last = armed(|| last.entered());
            drop(last);
            drop(inside);
        };
        std::thread::spawn(deep_down).join().unwrap();
        assert_eq!(INTERRUPTED.load(Ordering::Relaxed) - before, 1);
        assert_eq!(NOTED.load(Ordering::Relaxed), 1);
    });
    let Some(place) = place(&name) else { return };
    place.run(&name, Role::Alone);
    balanced(&place.messages());
}
