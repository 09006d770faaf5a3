//! `atrace doctor`: prints the doctor's report about each of the named processes.
//!
//! Any user may start any number of processes that have the given name, so the time for other users is limited. The
//! processes of the command's user are examined first. If the command runs as root, the processes of each other user
//! then get [one second](PATIENCE) in total. Processes that were not examined in this time are only counted.

use std::collections::BTreeMap;

use atrace_sys::privsep::{PATIENCE, User};

use crate::doctor::{Report, examine, examine_program, examine_within, user};
use crate::escape::shown;

use crate::command::terminal::{Failure, Result, print};
use crate::process::{self, Process};

#[derive(clap::Args, Debug)]
pub(crate) struct DoctorArgs {
    /// A process, or the name or path of a program, whether it runs or not [default: any program of
    /// this user]
    #[arg(value_name = "PID|CMD")]
    patient: Option<String>,
}

/// Prints the reports. Returns the exit status, which is 0 only if all found processes were examined and, in each of
/// them, an event that is written now would arrive at its destination. For a program that does not run, the status is
/// also 0 if `atrace run` would record the program.
pub(crate) fn main(args: &DoctorArgs) -> Result<u8> {
    let mut all_arrive = true;
    let mut show = |report: Report| {
        print(&report.to_string());
        all_arrive &= report.arrives();
    };
    let Some(patient) = &args.patient else {
        show(examine_program(None));
        return Ok(u8::from(!all_arrive));
    };
    if let Ok(pid) = patient.parse() {
        show(examine(pid));
        return Ok(u8::from(!all_arrive));
    }
    if patient.is_empty() {
        return Err(Failure::new("an empty name names no program"));
    }
    let called = process::all().into_iter().filter(|process| is_called(*process, patient));
    let mut running: Vec<_> = called.map(|process| (uid(process), process)).collect();
    if running.is_empty() {
        print(&format!(
            "no running process is called {}: this is the result for a process that is started now",
            shown(patient)
        ));
        show(examine_program(Some(patient)));
    }
    let own = User::present().uid;
    running.sort_by_key(|(uid, _)| *uid != own);
    let (mut left, mut missed) = (BTreeMap::new(), BTreeMap::new());
    for (index, (uid, process)) in running.iter().enumerate() {
        let left = left.entry(uid).or_insert(PATIENCE);
        if left.is_zero() {
            *missed.entry(uid).or_insert(0_u32) += 1;
            continue;
        }
        if index > 0 {
            print("");
        }
        show(if *uid == own { examine(process.0) } else { examine_within(process.0, left) });
    }
    for (uid, count) in &missed {
        print(&format!(
            "\nnot examined: {count} more processes of user {uid}, because the others took a second: atrace doctor PID"
        ));
    }
    Ok(u8::from(!all_arrive || !missed.is_empty()))
}

/// Returns the id of the user who started a process, even if the process has root's rights because its program is
/// set-user-id. Returns `u32::MAX` for a process that has ended.
fn uid(process: Process) -> u32 {
    process.status().as_ref().and_then(user).map_or(u32::MAX, |user| user.uid)
}

/// Returns whether a name refers to the process: the name equals `argv[0]` or the last path component of `argv[0]`,
/// or is a pattern that matches `argv[0]`.
fn is_called(process: Process, name: &str) -> bool {
    let Some(argv0) = process.argv0() else { return false };
    let argv0 = argv0.to_string_lossy();
    argv0 == name || argv0.rsplit('/').next() == Some(name) || process.matches(name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use super::*;

    #[test]
    #[allow(unsafe_code, reason = "a program gets the ids of a set-user-id program")]
    fn a_program_with_roots_rights_belongs_to_its_user() {
        if User::present().uid != 0 {
            return;
        }
        let mut command = Command::new("sleep");
        command.arg("60");
        // SAFETY: the call may be made between fork and exec.
        unsafe {
            command.pre_exec(|| match libc::setresuid(65534, 0, 0) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let mut child = command.spawn().unwrap();
        let uid = uid(Process(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(uid, 65534);
    }
}
