//! The command line: `atrace run`, `record`, `cost`, `on`, `off`, `status` and `doctor`.
//!
//! At its end, a command (except `on`) switches off everything that it has switched on. If the command is killed, a
//! later command switches these things off (`notes`, `buffer::sweep`). The text of most errors suggests a remedy.
//!
//! # Modules
//!
//! - `run`, `record`, `cost`, `switch`, `doctor`: the commands;
//! - `program`: starts and supervises a program;
//! - `stores`: the users' property stores, which are opened with the rights of their users;
//! - `buffer`: the kernel's ring buffers;
//! - `file`: the file of a recording;
//! - `notes`: files that tell the next command what to restore if this command is killed;
//! - `caller`: the user who called the command; `terminal`: output and errors on the terminal.

mod buffer;
mod caller;
mod cost;
mod doctor;
mod file;
mod notes;
mod program;
mod record;
mod run;
mod stores;
mod switch;
mod terminal;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use self::program::{StageArgs, WitnessArgs, become_main, witness_main};
use self::terminal::{failed, note, say, shown_path, unprinted};

/// Records the events that programs write with ATrace, for ui.perfetto.dev
#[derive(Debug, Parser)]
#[command(name = "atrace", version, arg_required_else_help = true, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  atrace run -- ./my_service --port 8080     record a program; open my_service.pftrace at https://ui.perfetto.dev
  atrace run --filter info,sqlx=off -- CMD   record less of its spans and events
  atrace record -t 10s -a '*my_service'      record a program that is running already
  sudo atrace record -t 5s -c sched,freq     record the kernel
  atrace doctor my_service                   why is nothing traced?";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a program, trace it and save the recording
    Run(run::RunArgs),
    /// Record programs that are running, or the kernel, for a while
    Record(record::RecordArgs),
    /// Measure what tracing costs a program
    Cost(cost::CostArgs),
    /// Switch tracing on in programs, until it is switched off
    On(switch::SwitchArgs),
    /// Switch patterns off, also those of recordings that run
    Off(switch::SwitchArgs),
    /// Show which patterns and tags are switched on, and in which processes
    Status,
    /// Find out why nothing is traced
    Doctor(doctor::DoctorArgs),
    /// Write the manual pages into a directory
    Man {
        /// Such as ~/.local/share/man/man1
        directory: PathBuf,
    },
    #[command(name = "__become", hide = true)]
    Become(StageArgs),
    #[command(name = "__witness", hide = true)]
    Witness(WitnessArgs),
}

/// Runs the command that the command line names, and returns its exit status.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(e) => {
            if let Err(e) = e.print() {
                note(e);
            }
            if let Some(e) = unprinted() {
                say(&e);
                return ExitCode::from(e.status);
            }
            return ExitCode::from(if e.use_stderr() { 2 } else { 0 });
        }
    };
    let done = match &arguments.command {
        Command::Run(args) => run::main(args),
        Command::Record(args) => record::main(args).map(|()| 0),
        Command::Cost(args) => cost::main(args),
        Command::On(args) => switch::on(args).map(|()| 0),
        Command::Off(args) => switch::off(args).map(|()| 0),
        Command::Status => switch::status().map(|()| 0),
        Command::Doctor(args) => doctor::main(args),
        Command::Man { directory } => clap_mangen::generate_to(Arguments::command(), directory)
            .map_err(failed(shown_path(directory)))
            .map(|()| 0),
        Command::Become(args) => return become_main(args),
        Command::Witness(args) => witness_main(args).map(|()| 0),
    };
    match done.and_then(|status| unprinted().map_or(Ok(status), Err)) {
        Ok(status) => ExitCode::from(status),
        Err(e) => {
            say(&e);
            ExitCode::from(e.status)
        }
    }
}
