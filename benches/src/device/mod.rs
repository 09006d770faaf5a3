//! Runs the benches on an Android device: what the program `on-device` does.
//!
//! A device is someone's: whatever becomes of a run, it is left as it was. So everything that a run
//! changes there is noted before it is changed, and one clean-up at the end takes back what was
//! noted: the bench that still runs, the properties, the ring buffer's switch, the directory, adb's
//! being root. Ctrl-C ends what runs now and goes on with the clean-up, which no further Ctrl-C
//! ends; each of its steps is tried even if another fails, and what could not be taken back is said
//! with the commands that do it.
//!
//! What runs on the device are short scripts for its shell. Those that start a bench leave its
//! number in a file, since a program may outlive the connection that started it.

mod adb;
mod args;
mod build;
mod child;
mod error;
mod properties;
mod record;
mod results;

use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Parser as _;

use adb::{Adb, Done, SHORT, is_full, quote};
use args::DeviceArgs;
use build::{Abi, Bench};
use child::{Interrupt, Stream};
use error::{Error, Step, at};
use properties::{FLAGS, Properties, set};
use record::Record;
use results::Results;

use crate::harness::PREFIX;
use crate::harness::supervise::DEVICE_TEMP;
use crate::harness::terminal::{self, complain, fail};

/// Runs the program `on-device` and returns its exit status, which says what failed.
#[must_use]
pub fn main() -> ExitCode {
    match run(&DeviceArgs::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => fail(e.code(), e),
    }
}

/// Prints a line of progress.
fn say(what: &str, line: impl fmt::Display) {
    terminal::say(format_args!("{what}: {line}"));
}

fn run(args: &DeviceArgs) -> Result<(), Error> {
    let interrupt = Interrupt::new().map_err(at(Step::Here, "taking signals"))?;
    let serial =
        args.serial.clone().or_else(|| std::env::var("ANDROID_SERIAL").ok().filter(|s| !s.is_empty()));
    let adb = Adb::find(serial.as_deref(), &interrupt)?;
    let mut record = describe(&adb)?;
    say("device", record.line());
    let abi = abi(args.abi, &adb, &record)?;
    record.abi = abi.name().to_owned();
    record.quick = args.quick;

    let benches = match &args.executables {
        Some(directory) => build::built(directory)?,
        None => {
            say("build", format_args!("the benches for {}", abi.name()));
            build::build(abi, &interrupt)?
        }
    };
    let mut session = Session { adb: &adb, interrupt: &interrupt, undo: Undo::default(), cleaned: false };
    let done = session.work(&benches, &mut record);
    let cleaned = session.clean_up(done.as_ref().is_err_and(Error::is_device));
    match (done, cleaned) {
        (Err(e), Err(left)) => {
            complain(left);
            Err(e)
        }
        (done, cleaned) => done.and(cleaned),
    }
}

fn describe(adb: &Adb<'_>) -> Result<Record, Error> {
    let properties = Properties::parse(&adb.shell("getprop")?.out);
    Ok(Record::new(adb.serial(), &properties, &adb.shell(record::SCRIPT)?.out))
}

/// Decides what to build for.
fn abi(asked: Option<Abi>, adb: &Adb<'_>, record: &Record) -> Result<Abi, Error> {
    let own = Abi::named(&record.abi);
    let Some(asked) = asked else {
        return own.ok_or_else(|| {
            let what = match &record.abi[..] {
                "" => format!("{} does not say what machine code it runs: say it with --abi", adb.serial()),
                abi => format!(
                    "{} runs {abi}; the benches are for x86_64 and arm64-v8a: take another device",
                    adb.serial()
                ),
            };
            Error::new(Step::Device, what)
        });
    };
    let list = adb.shell("getprop ro.product.cpu.abilist")?.out;
    let list = if list.trim().is_empty() { &record.abi } else { list.trim() };
    if list.is_empty() || list.split(',').any(|abi| abi.trim() == asked.name()) {
        return Ok(asked);
    }
    let what =
        format!("{} does not run {}: leave --abi away, or name one of {list}", adb.serial(), asked.name());
    Err(Error::new(Step::Device, what))
}

/// What a run has changed on the device, or is about to.
#[derive(Debug, Default)]
struct Undo {
    /// adb may be running as root there.
    root: bool,
    /// The directory that everything is in.
    directory: Option<String>,
    /// The properties before.
    switches: Option<Properties>,
    /// The file that switches the ring buffer, which was off.
    tracing_on: Option<String>,
    /// A bench may be running.
    bench: bool,
}

/// The device while benches run on it.
#[derive(Debug)]
struct Session<'a> {
    adb: &'a Adb<'a>,
    interrupt: &'a Interrupt,
    undo: Undo,
    cleaned: bool,
}

impl Session<'_> {
    fn work(&mut self, benches: &[Bench], record: &mut Record) -> Result<(), Error> {
        let results = Results::new(&record.directory())?;
        record.root = self.adb.become_root(|| self.undo.root = true)?;
        say("user", if record.root { "root" } else { "shell: this device gives no root" });
        self.permit()?;
        let directory = self.make_directory()?;
        for bench in benches {
            let size = bench.path.metadata().map_err(at(Step::Push, bench.path.display()))?.len();
            say("push", format_args!("{}, {:.1} MiB", bench.name, size as f64 / f64::from(1 << 20)));
            self.adb.push(&bench.path, &format!("{directory}/{}", bench.name))?;
        }
        let mut failed = Vec::new();
        for bench in benches {
            let outcome = self.bench(&directory, bench, record.quick)?;
            record.benches.insert(bench.name.clone(), outcome.is_none());
            if let Some(why) = outcome {
                // The next may be better.
                say("failed", &bench.name);
                failed.push(why);
            }
        }
        if failed.len() < benches.len() {
            say("pull", "the rows and Criterion's data");
            // What root made is root's; the pull is not.
            self.adb.shell(&format!("chmod -R a+rX {directory}"))?;
            let (rows, criterion) = results.pull(self.adb, &directory, record)?;
            say("rows", rows.display());
            say("criterion", criterion.display());
        }
        match failed.is_empty() {
            true => Ok(()),
            false => Err(Error::new(Step::Bench, failed.join("\n  "))),
        }
    }

    /// Makes sure that tracing can be switched and events be written, and switches the ring buffer on.
    fn permit(&mut self) -> Result<(), Error> {
        let serial = self.adb.serial();
        let advice = "use a device that gives root (an emulator image without Google Play, a userdebug \
                      build), or one whose shell may do this";
        let denied = |what: &str, said: &str| {
            let said = if said.is_empty() { String::new() } else { format!(" ({said})") };
            Error::new(Step::Permission, format!("no permission on {serial} {what}{said}: {advice}"))
        };
        let switches = Properties::parse(&self.adb.shell("getprop")?.out).switches();
        let flags = set(FLAGS, switches.get(FLAGS));
        self.undo.switches = Some(switches);
        let done = self.adb.shell(&flags)?;
        if !done.is_fine() {
            return Err(denied("to set the properties debug.atrace.*", &done.all()));
        }
        let done = self.adb.shell(
            "for root in /sys/kernel/tracing /sys/kernel/debug/tracing; do\n\
             if ( : >> $root/trace_marker ) 2>/dev/null; then\n\
             echo $root $(cat $root/tracing_on); exit 0\n\
             fi\n\
             done; exit 1",
        )?;
        let Some(root) = done.out.split_whitespace().next().filter(|_| done.status == 0) else {
            return Err(denied("to write to the kernel's trace_marker", &done.all()));
        };
        if done.out.split_whitespace().nth(1) == Some("0") {
            let file = format!("{root}/tracing_on");
            self.undo.tracing_on = Some(file.clone());
            let done = self.adb.shell(&format!("echo 1 > {file}"))?;
            if !done.is_fine() {
                return Err(denied("to switch the kernel's ring buffer on", &done.all()));
            }
        }
        Ok(())
    }

    fn make_directory(&mut self) -> Result<String, Error> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let directory = format!("{DEVICE_TEMP}/{PREFIX}-{}-{now}", std::process::id());
        self.undo.directory = Some(directory.clone());
        // The shell's, so that a push gets there.
        let done = self.adb.shell(&format!(
            "mkdir {directory} && chmod 777 {directory} && mkdir {directory}/overhead {directory}/criterion"
        ))?;
        if done.is_fine() {
            return Ok(directory);
        }
        let said = done.all();
        let what = if is_full(&said) {
            format!("{}: {said}", self.adb.full())
        } else {
            format!("making {directory}: {said}")
        };
        Err(Error::new(Step::Push, what))
    }

    /// Runs a bench; returns why it failed, if it did.
    fn bench(
        &mut self,
        directory: &str,
        Bench { name, .. }: &Bench,
        quick: bool,
    ) -> Result<Option<String>, Error> {
        let quick = if quick { " --quick" } else { "" };
        say("run", format_args!("{name} --bench{quick}"));
        let env = format!(
            "CRITERION_HOME={directory}/criterion ATRACE_OVERHEAD_DIR={directory}/overhead TMPDIR={directory}"
        );
        let program = format!("{directory}/{}", quote(name));
        let inner = format!("echo $$ > {directory}/pid; exec env {env} {program} --bench{quick}");
        let script = format!(
            "chmod 755 {program} && cd {directory} && sh -c {}; status=$?\n\
             rm -f {directory}/pid; exit $status",
            quote(&inner)
        );
        self.undo.bench = true;
        let done = self.adb.stream(&script, &mut |stream, line| {
            let _ = match stream {
                Stream::Out => io::stdout().write_all(line).and_then(|()| io::stdout().flush()),
                Stream::Err => io::stderr().write_all(line),
            };
        })?;
        self.undo.bench = false;
        let Done { status, .. } = done;
        if status == 0 {
            return Ok(None);
        }
        let why = match () {
            () if is_full(&done.out) || is_full(&done.err) => self.adb.full(),
            () if status > 128 => format!("signal {} ended it; what it said is above", status - 128),
            () => "what it said is above".to_owned(),
        };
        Ok(Some(format!("the bench {name} failed with status {status}: {why}")))
    }

    /// Takes back what was changed; what can't be is said with the commands for it.
    fn clean_up(&mut self, is_away: bool) -> Result<(), Error> {
        self.cleaned = true;
        self.interrupt.ignore();
        let Undo { root, directory, switches, tracing_on, bench } = std::mem::take(&mut self.undo);
        let mut left = Vec::new();
        let mut step = |what: &str, by_hand: &str, done: Result<Done, Error>| {
            let why = match done {
                Ok(done) if done.is_fine() => return,
                Ok(done) => done.all(),
                Err(e) => e.to_string(),
            };
            left.push(format!("{what} ({why}); by hand: adb -s {} {by_hand}", self.adb.serial()));
        };
        let shell = |script: &str| format!("shell {}", quote(script));
        if directory.is_some() || switches.is_some() {
            say("clean-up", "what was pushed, and the properties");
            if is_away {
                say("clean-up", "waiting for the device to come back");
                // If it does not, the steps say so.
                let _ = self.adb.wait(SHORT);
            }
        }
        if let (true, Some(directory)) = (bench, &directory) {
            let script = end_bench(directory);
            step("a bench is still running", &shell(&script), self.adb.shell(&script));
        }
        if let Some(switches) = switches {
            match self.adb.shell("getprop") {
                Ok(now) => {
                    if let Some(script) = switches.restore(&Properties::parse(&now.out).switches()) {
                        step(
                            "the properties debug.atrace.* are changed",
                            &shell(&script),
                            self.adb.shell(&script),
                        );
                    }
                }
                Err(e) => {
                    let script = switches.restore(&Properties::default()).unwrap_or_else(|| set(FLAGS, ""));
                    step("the properties debug.atrace.* may be changed", &shell(&script), Err(e));
                }
            }
        }
        if let Some(file) = tracing_on {
            let script = format!("echo 0 > {file}");
            step("the kernel's ring buffer is on", &shell(&script), self.adb.shell(&script));
        }
        if let Some(directory) = directory {
            let script = format!("rm -rf {directory}");
            step(&format!("{directory} is still there"), &shell(&script), self.adb.shell(&script));
        }
        if root {
            step("adb is still root there", "unroot", self.adb.stop_root().map(|()| Done::default()));
        }
        match left.is_empty() {
            true => Ok(()),
            false => Err(Error::new(Step::CleanUp, format!("left on the device: {}", left.join("\n  ")))),
        }
    }
}

impl Drop for Session<'_> {
    /// Cleans up after a panic.
    fn drop(&mut self) {
        if !self.cleaned
            && let Err(e) = self.clean_up(false)
        {
            complain(e);
        }
    }
}

/// A script that ends the bench which its connection left behind. It cleans up when it is asked, so it is
/// asked first. A number is used again some day, so the process must be one of this directory.
fn end_bench(directory: &str) -> String {
    format!(
        "pid=$(cat {directory}/pid 2>/dev/null)\n\
         alive() {{\n\
         [ -n \"$pid\" ] || return 1\n\
         case \"$(cat /proc/$pid/cmdline 2>/dev/null)\" in *{directory}/*) ;; *) return 1 ;; esac\n\
         }}\n\
         if alive; then kill -TERM $pid; fi\n\
         for i in 1 2 3 4 5 6 7 8 9 10; do if alive; then sleep 1; fi; done\n\
         if alive; then kill -KILL $pid; fi; true"
    )
}
