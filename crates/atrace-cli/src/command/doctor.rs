//! `atrace doctor`: prints the doctor's report about each of the named processes.
//!
//! Any user may start any number of processes with a name. As root, the processes of this user are examined first, and
//! each other user's processes get [one second](PATIENCE) together. The rest is only counted.

use std::collections::BTreeMap;

use atrace_sys::errand::{PATIENCE, User};

use crate::doctor::{Report, examine, examine_program, examine_within};
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

/// Prints the reports. Returns the exit status, which is 0 only if, in each examined process, an event that is written
/// now would arrive. For a program that does not run, the status is also 0 if `atrace run` would record the program.
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
    let mut running = process::all();
    running.retain(|process| is_called(*process, patient));
    if running.is_empty() {
        print(&format!(
            "no running process is called {}: this is the result for a process that is started now",
            shown(patient)
        ));
        show(examine_program(Some(patient)));
    }
    // A process without a user has ended.
    let uid = |process: &Process| process.uid().unwrap_or(u32::MAX);
    let own = User::present().uid;
    running.sort_by_key(|process| uid(process) != own);
    let (mut left, mut missed) = (BTreeMap::new(), BTreeMap::new());
    for (index, process) in running.iter().enumerate() {
        let left = left.entry(uid(process)).or_insert(PATIENCE);
        if left.is_zero() {
            *missed.entry(uid(process)).or_insert(0_u32) += 1;
            continue;
        }
        if index > 0 {
            print("");
        }
        show(if uid(process) == own { examine(process.0) } else { examine_within(process.0, left) });
    }
    for (uid, count) in &missed {
        print(&format!(
            "\nnot examined: {count} more processes of user {uid}, because the others took a second: atrace doctor PID"
        ));
    }
    Ok(u8::from(!all_arrive || !missed.is_empty()))
}

/// Returns whether a name refers to the process: the name equals `argv[0]` or the last path component of `argv[0]`,
/// or is a pattern that matches `argv[0]`.
fn is_called(process: Process, name: &str) -> bool {
    let Some(argv0) = process.argv0() else { return false };
    let argv0 = argv0.to_string_lossy();
    argv0 == name || argv0.rsplit('/').next() == Some(name) || process.matches(name)
}
