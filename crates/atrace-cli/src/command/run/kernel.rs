//! `atrace run --kernel`: traces one program into a separate ring buffer of the kernel, on request together with the
//! kernel's events.
//!
//! The program inherits the buffer's open marker, and its environment names a property store in which everything is
//! switched on. The same holds for its children, whatever their names. No other process is affected.

use crate::tracefs;
use rustix::process::geteuid;

use super::{RunArgs, default_name, tell_end};
use crate::command::buffer::{self, Names, Tally};
use crate::command::caller::Caller;
use crate::command::file::Output;
use crate::command::notes::Note;
use crate::command::program::{Program, ProgramStore, Signals, Tree, Witness, code, wait};
use crate::command::terminal::{Failure, Result, say, shown_path};

/// The expected number of processes. If there are more, they are named, too, but the file has to be copied once more.
const PROCESSES: usize = 100;

pub(super) fn record(args: &RunArgs) -> Result<u8> {
    if cfg!(target_os = "android") {
        return Err(Failure::new(
            "the programs of Android write to the device's one buffer: use `atrace record`",
        ));
    }
    let caller = Caller::behind_sudo()?;
    let signals = Signals::catch()?;
    buffer::sweep()?;
    let events = buffer::events(&tracefs::root()?, &args.categories)?;
    let instance = buffer::make(args.buffer)?;
    let path = args.output.clone().unwrap_or_else(|| default_name(&args.command, ".ftrace"));
    let output = Output::create(&path, args.force, caller.as_ref())?;
    let _note = Note::write(&path, caller.as_ref());
    let user = if args.root { None } else { caller.as_ref() };
    let store = ProgramStore::make(user)?;
    let names = Names::make()?;

    let witness = Witness::start(&signals)?;
    let (marker, properties) = (instance.marker_path(), store.path());
    let uid = user.map_or_else(|| geteuid().as_raw(), |user| user.uid);
    let mut tree = Tree::new(marker.clone(), &properties, uid);
    buffer::enable(&instance, &events)?;
    let program = Program::of_kernel(&args.command, &marker, names.directory(), &properties, user);
    let mut child = program.start()?;
    let mut tally = Tally::default();
    let status = wait(&mut child, &signals, witness, |_| {
        tally.look(&instance)?;
        tree.look(&names.living(), tally.written() == 0);
        Ok(())
    })?;

    tell_end(status);
    // Children of the program may still run. They find tracing switched off in their store, then the buffer switched
    // off.
    store.close();
    instance.set_tracing_on(false)?;
    tally.look(&instance)?;
    let names = names.read();
    let (path, instance) = buffer::save(instance, output, PROCESSES, |process| names.get(&process).cloned())?;
    let problems = if tally.written() == 0 { tree.silence() } else { tree.lost().into_iter().collect() };
    say(if problems.is_empty() { tally.report("events") } else { tally.report_of_some("events") });
    problems.iter().for_each(say);
    say(format_args!("saved {}: open it at https://ui.perfetto.dev", shown_path(&path)));
    buffer::remove(instance)?;
    Ok(code(status))
}
