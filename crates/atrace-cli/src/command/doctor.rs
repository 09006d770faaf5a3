//! `atrace doctor`: prints the doctor's report about each of the named processes.

use crate::doctor::{Report, examine, examine_program};
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
    let running: Vec<_> = process::all().into_iter().filter(|process| is_called(*process, patient)).collect();
    if running.is_empty() {
        print(&format!(
            "no running process is called {}: this is the result for a process that is started now",
            shown(patient)
        ));
        show(examine_program(Some(patient)));
    }
    for (index, process) in running.iter().enumerate() {
        if index > 0 {
            print("");
        }
        show(examine(process.0));
    }
    Ok(u8::from(!all_arrive))
}

/// Returns whether a name refers to the process: the name equals `argv[0]` or the last path component of `argv[0]`,
/// or is a pattern that matches `argv[0]`.
fn is_called(process: Process, name: &str) -> bool {
    let Some(argv0) = process.argv0() else { return false };
    let argv0 = argv0.to_string_lossy();
    argv0 == name || argv0.rsplit('/').next() == Some(name) || process.matches(name)
}
