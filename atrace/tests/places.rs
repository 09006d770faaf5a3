//! Tests that the kernel's ring buffer of a test is removed when the test's process ends, no matter how the process
//! ends.

#![cfg(target_os = "linux")]

mod common;

#[allow(unsafe_code, reason = "a process ends as a C program can")]
mod cases {
    use std::fs::File;
    use std::io::{BufRead as _, BufReader, Read as _};
    use std::os::unix::process::CommandExt as _;
    use std::path::PathBuf;
    use std::process::{Command, Stdio};

    use crate::common::{Place, case, end_of, until};

    #[test]
    fn an_instance_goes_with_its_process() {
        let name = case!({
            let place = Place::kernel("its case").unwrap();
            println!("AT {}", place.instance().path().display());
            // Another process has the marker open for one more second, like a process that is killed together with the
            // test and needs time to end.
            let held = File::options().write(true).open(place.marker()).unwrap();
            let _ = Command::new("sleep")
                .arg("1")
                .stdin(held)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            match std::env::var("END").unwrap().as_str() {
                "return" => {}
                "panic" => panic!("on purpose"),
                "abort" => std::process::abort(),
                // SAFETY: no preconditions; ends the process at once.
                "_exit" => unsafe { libc::_exit(0) },
                "exec" => panic!("{}", Command::new("cat").exec()),
                _ => drop(std::io::stdin().read(&mut [0])),
            }
        });
        if Place::kernel(&name).is_none() {
            return;
        }
        let ends = |end: &str| {
            let place = Place::file();
            let mut child = place.command(&name).env("END", end).stdin(Stdio::piped()).spawn().unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
            let path = lines.find_map(|line| Some(PathBuf::from(line.split_once("AT ")?.1))).unwrap();
            if end == "kill" {
                assert!(path.exists());
                child.kill().unwrap();
            }
            until(&format!("the instance is gone after {end}"), || !path.exists());
            drop(child.stdin.take()); // Ends the program `cat`, which the process may have executed.
            end_of(child);
        };
        std::thread::scope(|scope| {
            for end in ["return", "panic", "abort", "_exit", "exec", "kill"] {
                scope.spawn(move || ends(end));
            }
        });
    }
}
