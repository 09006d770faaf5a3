//! Tests a program that closes the marker's descriptor, after which the descriptor's number refers to a file,
//! socket or pipe of the program.

mod common;

#[allow(unsafe_code, reason = "descriptors are closed and put at numbers as a C program would")]
mod cases {
    use std::fs::File;
    use std::io::{Read as _, Seek as _, Write as _};
    use std::os::fd::{AsRawFd as _, RawFd};
    use std::os::unix::net::UnixStream;
    use std::path::PathBuf;

    use atrace::*;

    use crate::common::{self, Place, case, control, descriptor_of, descriptors, limit, limited};

    const TAG: AtraceTag = AtraceTag::App;
    /// The maximum number of a thread's events that may be written to a wrong file after the marker's descriptor was
    /// replaced. (The crate's documentation promises at most 255, and 256 on Android.)
    const BOUND: usize = 256;

    fn marker() -> PathBuf {
        std::env::var_os("ATRACE_MARKER").unwrap().into()
    }

    fn number() -> RawFd {
        descriptor_of(&marker()).expect("the marker is open")
    }

    /// Replaces the marker's descriptor, whose number is `at`: afterwards, it refers to the file of the program's
    /// descriptor `own`.
    fn put(own: RawFd, at: RawFd) {
        // SAFETY: the descriptor belongs to `atrace`, which must tolerate the change in this test.
        assert_eq!(unsafe { libc::dup2(own, at) }, at);
    }

    /// Returns the number of events in a text.
    fn events(text: &[u8]) -> usize {
        text.windows(2).filter(|two| two == b"I|").count()
    }

    fn events_in(file: &mut File) -> usize {
        let mut text = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut text).unwrap();
        events(&text)
    }

    fn many() {
        (0..2000).for_each(|_| atrace_instant(TAG, "event"));
    }

    #[test]
    fn own_files_after_all_was_closed_get_nothing() {
        let name = case!({
            let directory = tempfile::tempdir().unwrap();
            atrace_instant(TAG, "first");
            common::close_all();
            let file = |number| File::create_new(directory.path().join(format!("{number}"))).unwrap();
            let own: Vec<_> = (0..220).map(file).collect();
            many();
            let astray: u64 = own.iter().map(|file| file.metadata().unwrap().len()).sum();
            assert_eq!(astray, 0, "events went into files of the host");
            assert_eq!(sink().dropped(), 0);
        });
        let place = Place::file().on();
        place.run(&name);
        assert_eq!(events(place.text().as_bytes()), 2001);
    }

    #[test]
    fn few_descriptors_all_used_lose_no_more_than_the_bound() {
        let name = case!({
            let directory = tempfile::tempdir().unwrap();
            atrace_instant(TAG, "first");
            common::close_all();
            let mut own = Vec::new();
            while let Ok(file) = File::options()
                .create_new(true)
                .read(true)
                .write(true)
                .open(directory.path().join(format!("{}", own.len())))
            {
                own.push(file);
            }
            assert_eq!(own.len(), 61);
            many();
            let astray: usize = own.iter_mut().map(events_in).sum();
            assert!(astray <= BOUND, "{astray} events went into files of the host");
            many();
            assert_eq!(own.iter_mut().map(events_in).sum::<usize>(), astray, "it goes on");
            // All other events were dropped, because no descriptor number was free for the marker.
            assert_eq!(sink().dropped() as usize, 4000 - astray);
            drop(own);
            many();
            assert_eq!(sink().dropped() as usize, 4000 - astray);
        });
        let place = Place::file().on();
        let mut command = place.command(&name);
        common::run(limited(&mut command, libc::RLIMIT_NOFILE, 64, 64));
        assert_eq!(events(place.text().as_bytes()), 2001);
    }

    /// Tests that the marker is not opened again with the descriptor number that the program has closed, even if no
    /// other number is free.
    #[test]
    fn a_number_that_was_closed_is_not_the_markers_again() {
        let name = case!({
            atrace_instant(TAG, "first");
            let closed = number();
            let mut own = Vec::new();
            while let Ok(file) = File::open("/dev/null") {
                own.push(file);
            }
            // SAFETY: the descriptor belongs to `atrace`, which must tolerate the change in this test.
            assert_eq!(unsafe { libc::close(closed) }, 0);
            atrace_instant(TAG, "lost");
            assert_eq!((descriptor_of(&marker()), sink().dropped()), (None, 1));
            drop(own.pop());
            atrace_instant(TAG, "second");
            assert_eq!((number() != closed, sink().dropped()), (true, 1));
        });
        let place = Place::file().on();
        let mut command = place.command(&name);
        common::run(limited(&mut command, libc::RLIMIT_NOFILE, 64, 64));
        assert_eq!(events(place.text().as_bytes()), 2);
    }

    /// Tests that the marker's descriptor has the highest number that the soft limit allows, at most 4095, and the
    /// descriptor of the published state the number below it. If the limit was lowered, a marker that is opened again
    /// has the highest number below the new limit.
    #[test]
    fn the_number_is_the_highest_that_the_limit_allows() {
        let name = case!({
            let expected: RawFd = std::env::var("EXPECTED").unwrap().parse().unwrap();
            atrace_instant(TAG, "first");
            assert_eq!(number(), expected);
            let state = std::fs::read_dir("/proc/self/fd").unwrap().flatten().find(|entry| {
                std::fs::read_link(entry.path())
                    .is_ok_and(|link| link.to_string_lossy().contains("atrace-state"))
            });
            if cfg!(target_os = "linux") {
                assert_eq!(state.unwrap().file_name().to_str(), Some(&*(expected - 1).to_string()));
            }
            // After the limit was lowered, a marker that is opened again has the highest number below the new limit.
            limit(libc::RLIMIT_NOFILE, 32, 8192).unwrap();
            atrace_instant(TAG, "second");
            common::close_all();
            atrace_instant(TAG, "third");
            assert_eq!(number(), 31);
        });
        for (limit, expected) in [(64, 63), (1024, 1023), (4096, 4095), (8192, 4095)] {
            let place = Place::file().on();
            let mut command = place.command(&name);
            limited(&mut command, libc::RLIMIT_NOFILE, limit, 8192);
            let ran = common::run(command.env("EXPECTED", expected.to_string()));
            assert_eq!(ran.stderr, "");
            assert_eq!(events(place.text().as_bytes()), 3);
        }
    }

    /// Replaces the marker's descriptor by `own`, and writes events. Returns how many events were written to the file
    /// of `own`. `read` returns the number of events in this file.
    fn goes_astray(own: RawFd, mut read: impl FnMut() -> usize) -> usize {
        let before = descriptors().len();
        put(own, number());
        many();
        let astray = read();
        assert!(astray <= BOUND, "{astray} events went to the host's descriptor");
        many();
        assert_eq!(read(), astray, "it goes on");
        assert_eq!(sink().dropped(), 0);
        // The marker was opened again with another number, and the replaced descriptor still refers to the program's
        // file.
        assert_eq!(descriptors().len(), before + 1);
        astray
    }

    #[test]
    fn a_file_a_socket_and_a_pipe_at_the_number_get_no_more_than_the_bound() {
        let name = case!({
            atrace_instant(TAG, "first");
            let mut file = tempfile::tempfile().unwrap();
            let mut astray = goes_astray(file.as_raw_fd(), || events_in(&mut file));

            let (socket, mut peer) = UnixStream::pair().unwrap();
            peer.set_nonblocking(true).unwrap();
            let mut text = Vec::new();
            astray += goes_astray(socket.as_raw_fd(), || {
                let _ = peer.read_to_end(&mut text);
                events(&text)
            });

            let (mut reader, writer) = std::io::pipe().unwrap();
            // SAFETY: a descriptor of this test.
            unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
            let mut text = Vec::new();
            astray += goes_astray(writer.as_raw_fd(), || {
                let _ = reader.read_to_end(&mut text);
                events(&text)
            });
            println!("ASTRAY {astray}");
        });
        let place = Place::file().on();
        let ran = place.run(&name);
        let astray: usize = ran.said("ASTRAY")[0].parse().unwrap();
        assert_eq!(events(place.text().as_bytes()) + astray, 12_001);
    }

    /// Tests errors of `write(2)` that no marker returns. After such an error, the library notices at once that the
    /// descriptor is not the marker's, and writes the event to the marker.
    #[test]
    fn an_answer_that_no_marker_gives_is_found_out_at_once() {
        let name = case!({
            atrace_instant(TAG, "first");
            // A write to a socket without a peer returns EPIPE. (Rust programs ignore SIGPIPE.)
            let (socket, peer) = UnixStream::pair().unwrap();
            drop(peer);
            put(socket.as_raw_fd(), number());
            atrace_instant(TAG, "broken");
            // A write to an unconnected socket returns ENOTCONN.
            // SAFETY: no preconditions; creates a descriptor.
            let unconnected = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) };
            put(unconnected, number());
            atrace_instant(TAG, "unconnected");
            // A write to a full socket or a full pipe returns EAGAIN.
            let (mut socket, mut peer) = UnixStream::pair().unwrap();
            socket.set_nonblocking(true).unwrap();
            while socket.write(&[b'.'; 64]).is_ok() {}
            put(socket.as_raw_fd(), number());
            atrace_instant(TAG, "full");
            let (reader, mut writer) = std::io::pipe().unwrap();
            // SAFETY: a descriptor of this test.
            unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
            while writer.write(&[b'.'; 64]).is_ok() {}
            put(writer.as_raw_fd(), number());
            atrace_instant(TAG, "stuffed");
            // A write to a descriptor that is open only for reading returns EBADF.
            put(File::open("/dev/null").unwrap().as_raw_fd(), number());
            atrace_instant(TAG, "read-only");
            // A write to an epoll descriptor returns EINVAL.
            // SAFETY: no preconditions; creates a descriptor.
            put(unsafe { libc::epoll_create1(0) }, number());
            atrace_instant(TAG, "polling");
            // A write to `/dev/full` returns ENOSPC.
            put(File::options().write(true).open("/dev/full").unwrap().as_raw_fd(), number());
            atrace_instant(TAG, "end");
            assert_eq!(sink().dropped(), 0);
            let mut text = [0; 1 << 16];
            let got = peer.read(&mut text).unwrap();
            assert_eq!(events(&text[..got]), 0);
            drop(reader);
        });
        let place = Place::file().on();
        let pid = place.run(&name).pid;
        let expected = ["first", "broken", "unconnected", "full", "stuffed", "read-only", "polling", "end"];
        assert_eq!(place.text(), expected.map(|name| format!("I|{pid}|{name}")).concat());
    }

    #[test]
    fn a_switch_finds_it_out() {
        let name = case!({
            atrace_instant(TAG, "first");
            let mut file = tempfile::tempfile().unwrap();
            put(file.as_raw_fd(), number());
            let _switched = control().enable(AtraceTag::Camera).unwrap();
            many();
            assert_eq!(events_in(&mut file), 0);
            put(file.as_raw_fd(), number());
            atrace_update_tags();
            many();
            assert_eq!(events_in(&mut file), 0);
        });
        let place = Place::file().on();
        place.run(&name);
        assert_eq!(events(place.text().as_bytes()), 4001);
    }

    /// Tests that each thread notices that the marker's descriptor was replaced, even a thread that writes only one
    /// event, because each thread checks the descriptor at its first event. On Android, threads whose stacks are at the
    /// same address count as one thread for this check.
    #[test]
    fn each_thread_and_each_child_finds_it_out() {
        let name = case!({
            let most = |stacks| if cfg!(target_os = "android") { stacks * BOUND } else { 0 };
            atrace_instant(TAG, "first");
            let mut file = tempfile::tempfile().unwrap();
            put(file.as_raw_fd(), number());
            for _ in 0..600 {
                std::thread::spawn(|| atrace_instant(TAG, "event")).join().unwrap();
            }
            let first = events_in(&mut file);
            assert!(first <= most(1), "{first}");
            put(file.as_raw_fd(), number());
            std::thread::scope(|scope| (0..4).for_each(|_| _ = scope.spawn(many)));
            let second = events_in(&mut file) - first;
            assert!(second <= most(4), "{second}");
            let child = common::fork();
            if child == 0 {
                put(file.as_raw_fd(), number());
                many();
                // SAFETY: no preconditions; ends the child.
                unsafe { libc::_exit(i32::from(events_in(&mut file) > first + second + BOUND)) };
            }
            let mut status = 0;
            // SAFETY: `status` is writable.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
            println!("ASTRAY {}", events_in(&mut file));
            // The child has replaced its own descriptor only. This does not affect the parent.
            atrace_instant(TAG, "last");
            assert_eq!(sink().dropped(), 0);
        });
        let place = Place::file().on();
        let ran = place.run(&name);
        let astray: usize = ran.said("ASTRAY")[0].parse().unwrap();
        assert_eq!(events(place.text().as_bytes()) + astray, 1 + 600 + 8000 + 2000 + 1);
    }

    /// Tests that events are dropped if the marker's descriptor was replaced and the marker can't be opened again: they
    /// are not written to the replaced descriptor.
    #[test]
    fn without_a_descriptor_to_be_had_events_are_dropped() {
        let name = case!({
            atrace_instant(TAG, "first");
            let mut file = tempfile::tempfile().unwrap();
            put(file.as_raw_fd(), number());
            let moved = marker().with_file_name("moved");
            std::fs::rename(marker(), &moved).unwrap();
            many();
            let astray = events_in(&mut file);
            assert!(astray <= BOUND);
            many();
            assert_eq!((events_in(&mut file), sink().dropped() as usize), (astray, 4000 - astray));
            std::fs::rename(&moved, marker()).unwrap();
            many();
            assert_eq!((events_in(&mut file), sink().dropped() as usize), (astray, 4000 - astray));
        });
        let place = Place::file().on();
        place.run(&name);
        assert_eq!(events(place.text().as_bytes()), 2001);
    }

    /// Tests a limit of the size of files that is set after the first event. Events that would exceed the limit and
    /// raise SIGXFSZ are dropped. Events are written again after the limit is removed.
    #[test]
    fn a_size_limit_that_comes_later_ends_events_not_the_program() {
        let name = case!({
            let limit_to = |size| limit(libc::RLIMIT_FSIZE, size, libc::RLIM_INFINITY).unwrap();
            atrace_instant(TAG, "first");
            // The limit leaves room for the events that may be written before the library notices the limit.
            limit_to((BOUND * 1024) as libc::rlim_t);
            let name = "x".repeat(1000);
            let before = descriptors();
            for _ in 0..4 {
                (0..1000).for_each(|_| atrace_instant(TAG, &name));
            }
            let dropped = sink().dropped() as usize;
            assert!(dropped >= 4000 - BOUND, "{dropped}");
            assert_eq!(descriptors(), before);
            limit_to(libc::RLIM_INFINITY);
            atrace_instant(TAG, "last");
            assert_eq!(sink().dropped() as usize, dropped);
            // The first event after a switch of tracing checks the limit of the size of files, so it is dropped.
            limit_to(0);
            let _switched = control().enable(AtraceTag::Camera);
            limit_to(libc::RLIM_INFINITY);
            atrace_update_tags();
            limit_to(0);
            atrace_update_tags();
            atrace_instant(TAG, "too much");
            assert_eq!(sink().dropped() as usize, dropped + 1);
            println!("WRITTEN {}", 4002 - dropped);
        });
        let place = Place::file().on();
        let ran = place.run(&name);
        assert_eq!(events(place.text().as_bytes()).to_string(), ran.said("WRITTEN")[0]);
    }
}
