//! The command line: `atrace run`, `record`, `on`, `off`, `status` and `doctor`.
//!
//! A command undoes everything that it switched on, except for `on` itself. If it is killed, the next command undoes
//! it (`notes`, `buffer::sweep`). Each error says what to do.
//!
//! # Modules
//!
//! - `run`, `record`, `switch`, `doctor`: the commands;
//! - `program`: starts and supervises a program;
//! - `stores`: the users' property stores, which are opened with the rights of their users;
//! - `buffer`: the kernel's ring buffers;
//! - `file`: the file of a recording;
//! - `notes`: what to clean up after a killed command;
//! - `caller`, `terminal`: users and the output.

mod buffer;
mod caller;
mod doctor;
mod file;
mod notes;
mod program;
mod record;
mod run;
mod stores;
mod switch;
mod terminal;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use self::program::{StageArgs, WitnessArgs, become_main, witness_main};
use self::terminal::{note, say, unprinted};

/// Records what programs trace with ATrace, for ui.perfetto.dev
#[derive(Debug, Parser)]
#[command(name = "atrace", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a program, trace it and save the recording
    Run(run::RunArgs),
    /// Record programs that are running, or the kernel, for a while
    Record(record::RecordArgs),
    /// Switch tracing on in programs, until it is switched off
    On(switch::SwitchArgs),
    /// Switch off what `on` switched on
    Off(switch::SwitchArgs),
    /// Show what is switched on, and in which processes
    Status,
    /// Find out why nothing is traced
    Doctor(doctor::DoctorArgs),
    #[command(name = "__become", hide = true)]
    Become(StageArgs),
    #[command(name = "__witness", hide = true)]
    Witness(WitnessArgs),
}

/// Runs the command that the program's arguments name, and returns its exit status.
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
        Command::On(args) => switch::on(args).map(|()| 0),
        Command::Off(args) => switch::off(args).map(|()| 0),
        Command::Status => switch::status().map(|()| 0),
        Command::Doctor(args) => doctor::main(args),
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
