//! Tests the socket thread of Perfetto's backend: its open descriptors, and the system calls that it makes.
#![cfg(target_os = "linux")]
#![expect(unsafe_code, reason = "a program that takes system calls away from itself")]

use std::path::PathBuf;
use std::time::Duration;

use atrace::{AtraceTag, atrace_instant, perfetto};
use atrace_real_service::{Event, Setup, is_program, place, until, wait_for};

/// Returns the file to which this descriptor of the socket thread of this process refers.
fn at(descriptor: u32) -> Option<PathBuf> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let mut named = tasks.filter(|task| {
        std::fs::read(task.path().join("comm")).is_ok_and(|name| name.starts_with(b"atrace-perfetto"))
    });
    let task = named.next().expect("it is there").path();
    std::fs::read_link(task.join(format!("fd/{descriptor}"))).ok()
}

/// Tests a program without standard descriptors. Libraries that write to the standard descriptors must not reach the
/// socket.
#[test]
fn its_first_descriptors_lead_nowhere() {
    const TEST: &str = "its_first_descriptors_lead_nowhere";
    if is_program(TEST) {
        // SAFETY: nothing uses the closed descriptors.
        unsafe {
            assert_eq!([0, 1, 2].map(|number| libc::close(number)), [0; 3]);
        }
        perfetto::connect();
        assert!(perfetto::status().is_connected());
        for descriptor in 0..3 {
            assert_eq!(at(descriptor), Some("/dev/null".into()));
        }
        assert!(at(3).is_some_and(|socket| socket.to_string_lossy().starts_with("socket:")));
        let own = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let mut own = own.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        assert!(own.all(|place| !place.to_string_lossy().starts_with("socket:")));
        return;
    }
    let Some(setup) = Setup::start(TEST) else { return };
    assert!(setup.program().status().unwrap().success());
}

/// The system calls that the socket thread makes after it has connected (`docs/security.md` lists them, too), and the
/// system calls of the program's own thread.
const CALLS: [libc::c_long; 15] = [
    libc::SYS_ppoll,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_clock_gettime,
    libc::SYS_membarrier,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_tgkill,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    // These calls are for the program's own thread: an event makes the first two once per session.
    libc::SYS_gettid,
    libc::SYS_prctl,
    libc::SYS_exit_group,
];

/// Makes the kernel end this process if any of its threads makes a system call that is not in `calls`.
fn allow_only(calls: &[libc::c_long]) {
    let statement =
        |code: u32, jump: u8, value: u32| libc::sock_filter { code: code as u16, jt: jump, jf: 0, k: value };
    // The number of the system call is the first word of a filter's input.
    let mut filter = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    for (at, call) in calls.iter().enumerate() {
        let to_the_end = (calls.len() - at) as u8;
        filter.push(statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, to_the_end, *call as u32));
    }
    filter.push(statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_KILL_PROCESS));
    filter.push(statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the filter has that length, and the kernel copies it.
    let code = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        let flags = libc::SECCOMP_FILTER_FLAG_TSYNC;
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    };
    assert_eq!(code, 0, "{}", std::io::Error::last_os_error());
}

/// The further system calls that the socket thread makes when it receives memory of the service.
const CALLS_FOR_MEMORY: [libc::c_long; 4] =
    [libc::SYS_fcntl, libc::SYS_fstat, libc::SYS_newfstatat, libc::SYS_close];

/// Tests a process that confines itself to few system calls (seccomp) before its first session.
#[test]
fn it_makes_few_more_calls_for_memory() {
    const TEST: &str = "it_makes_few_more_calls_for_memory";
    if is_program(TEST) {
        perfetto::connect();
        std::fs::write(place("ready"), "").unwrap();
        allow_only(&[&CALLS[..], &CALLS_FOR_MEMORY].concat());
        while perfetto::status().sessions() != 1 {
            atrace_sys::thread::pause(Duration::from_millis(1));
        }
        atrace_instant(AtraceTag::App, "first");
        // SAFETY: no preconditions; ends the process.
        unsafe { libc::_exit(0) };
    }
    let Some(setup) = Setup::start(TEST) else { return };
    let mut child = setup.program().spawn().unwrap();
    wait_for(&setup.place("ready"));
    // Waits until the program has installed its filter of system calls.
    std::thread::sleep(Duration::from_millis(100));
    let session = setup.session();
    let status = child.wait().unwrap();
    assert!(status.success(), "{status}");
    let names: Vec<_> = session.stop().events().iter().map(Event::name).collect();
    assert_eq!(names, ["first"]);
}

/// The names that the program's thread gives itself. An index is the number of sessions that the thread has seen.
const STEPS: [&std::ffi::CStr; 3] = [c"none", c"one again", c"two"];

#[test]
fn it_makes_the_listed_calls_alone() {
    const TEST: &str = "it_makes_the_listed_calls_alone";
    if is_program(TEST) {
        perfetto::connect();
        assert!(perfetto::status().is_connected());
        atrace_instant(AtraceTag::App, "before");
        let ready = place("ready");
        // The test waits for this file. From now on, this thread only sleeps, uses memory, and makes the system calls
        // in `CALLS`.
        std::fs::write(ready, "").unwrap();
        allow_only(&CALLS);
        for wanted in [2, 1] {
            while perfetto::status().sessions() != wanted {
                atrace_instant(AtraceTag::App, "meanwhile");
                atrace_sys::thread::pause(Duration::from_millis(1));
            }
            // SAFETY: the name is a C string. The test waits until the thread has this name.
            unsafe { libc::prctl(libc::PR_SET_NAME, STEPS[wanted as usize].as_ptr(), 0, 0, 0) };
        }
        // Waits for so long that the socket thread makes two clock anchors.
        atrace_sys::thread::pause(Duration::from_millis(2_100));
        atrace_instant(AtraceTag::App, "after");
        // SAFETY: no preconditions; ends the process.
        unsafe { libc::_exit(0) };
    }
    let Some(setup) = Setup::start(TEST) else { return };
    let mut session = setup.session();
    let mut child = setup.program().spawn().unwrap();
    while !setup.place("ready").exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ended");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(100));
    let second = setup.session();
    let wanted = format!("{}\n", STEPS[2].to_str().unwrap());
    until("the program has seen the second session", || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap().flatten();
        let mut names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        names.any(|name| name == wanted)
    });
    session.flush();
    second.stop();
    let status = child.wait().unwrap();
    assert!(status.success(), "{status}");
    let names: Vec<_> = session.stop().events().into_iter().filter_map(|event| event.name).collect();
    assert_eq!((names.first(), names.last()), (Some(&b"before".to_vec()), Some(&b"after".to_vec())));
}
