//! The program that is traced: the test again, in a process of its own.

use std::process::{Command, Stdio};

use atrace_real_service::Service;

/// Whether this is that process.
pub(crate) fn is_program(test: &str) -> bool {
    std::env::var("ATRACE_TEST_PROGRAM").is_ok_and(|present| present == test)
}

/// That process, a producer of this service.
pub(crate) fn program(test: &str, service: &Service) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    command.env("ATRACE_TEST_PROGRAM", test).env("PERFETTO_PRODUCER_SOCK_NAME", service.producers());
    command.env("ATRACE_BACKEND", "perfetto").stdin(Stdio::null()).stdout(Stdio::null());
    command
}
