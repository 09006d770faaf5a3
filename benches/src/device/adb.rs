//! Talks to a device through `adb`.
//!
//! Old versions of `adb` and of Android hand on neither the exit status of what runs on a device nor
//! its stderr, and end lines as a terminal does. So every script here says its status itself, as its
//! last line.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::child::{self, Ended, Interrupt, Stream};
use super::error::{Error, Step, at};

/// What begins the last line of a script.
const STATUS: &str = "on-device-status=";
/// How long a script may take that does next to nothing.
pub(crate) const SHORT: Duration = Duration::from_secs(30);
/// How long a device may take to come back, and a person to allow something on its screen.
const LONG: Duration = Duration::from_secs(60);

/// A device in `adb devices -l`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Listed {
    serial: String,
    state: String,
    model: Option<String>,
}

fn listed(text: &str) -> Vec<Listed> {
    let lines = text.lines().map(str::trim);
    lines.filter(|line| !line.starts_with('*') && !line.starts_with("List of")).filter_map(read).collect()
}

fn read(line: &str) -> Option<Listed> {
    let (serial, rest) = line.split_once(char::is_whitespace)?;
    let rest = rest.trim_start();
    let state = match rest {
        _ if rest.starts_with("no permissions") => "no permissions",
        _ => rest.split_whitespace().next()?,
    };
    let model = rest.split_whitespace().find_map(|word| word.strip_prefix("model:"));
    Some(Listed { serial: serial.to_owned(), state: state.to_owned(), model: model.map(str::to_owned) })
}

/// Picks the device to use, or says what to do.
fn choose(devices: &[Listed], serial: Option<&str>) -> Result<String, String> {
    let name = |Listed { serial, state, model }: &Listed| match model {
        Some(model) => format!("{serial} ({model}, {state})"),
        None => format!("{serial} ({state})"),
    };
    let names = || devices.iter().map(name).collect::<Vec<_>>().join(", ");
    let device = match (serial, devices) {
        (_, []) => {
            return Err(
                "there is no device: switch on USB debugging in its developer options and connect it, \
                        or start an emulator; then `adb devices` lists it"
                    .to_owned(),
            );
        }
        (Some(serial), _) => devices
            .iter()
            .find(|device| device.serial == serial)
            .ok_or_else(|| format!("there is no device {serial}; name one of these: {}", names()))?,
        (None, [device]) => device,
        (None, _) => {
            return Err(format!("there are {} devices: {}; name one with --serial", devices.len(), names()));
        }
    };
    let serial = &device.serial;
    match &device.state[..] {
        "device" => Ok(serial.clone()),
        "unauthorized" | "authorizing" => Err(unauthorised(serial)),
        "offline" => Err(offline(serial)),
        "no permissions" => Err(format!(
            "this user may not use {serial}: give it access to the USB device (a udev rule; see \
             https://developer.android.com/studio/run/device), then `adb kill-server` and connect it again"
        )),
        state => {
            Err(format!("{serial} is in the state {state}: boot Android on it (`adb -s {serial} reboot`)"))
        }
    }
}

fn unauthorised(serial: &str) -> String {
    format!(
        "{serial} is unauthorised: unlock it and allow USB debugging for this computer; if it does not ask, \
         `adb kill-server` and connect it again"
    )
}

fn offline(serial: &str) -> String {
    format!(
        "{serial} is offline: connect it again, or `adb -s {serial} reconnect`, until `adb devices` says \
         `device`"
    )
}

/// How scripts get to run as root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Via {
    /// Not, or as all scripts do.
    Shell,
    /// By AOSP's `su`, which takes a user and a program.
    SuProgram,
    /// By that of a rooted device, which takes a script.
    SuScript,
}

/// Makes a text one word of a shell's.
pub(crate) fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn wrap(via: Via, script: &str) -> String {
    let run = match via {
        Via::Shell => format!("( {script}\n)"),
        Via::SuProgram => format!("su 0 sh -c {}", quote(script)),
        Via::SuScript => format!("su -c {}", quote(script)),
    };
    format!("{run}; echo {STATUS}$?")
}

/// What a script said and how it ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) status: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Done {
    /// Whether nothing was said against it. Old programs of Android complain and end with 0.
    pub(crate) fn is_fine(&self) -> bool {
        self.status == 0 && self.all().is_empty()
    }

    /// Returns all that was said, in one line.
    pub(crate) fn all(&self) -> String {
        one_line(&[&self.out, &self.err])
    }
}

fn one_line(texts: &[&str]) -> String {
    let lines = texts.iter().flat_map(|text| text.lines()).map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("; ")
}

/// The adb of this machine, and the device it is to talk to.
#[derive(Debug)]
pub(crate) struct Adb<'a> {
    program: OsString,
    serial: String,
    via: Cell<Via>,
    interrupt: &'a Interrupt,
}

impl<'a> Adb<'a> {
    /// Finds the device: the one with this serial number, or the only one.
    pub(crate) fn find(serial: Option<&str>, interrupt: &'a Interrupt) -> Result<Self, Error> {
        let program = std::env::var_os("ADB").filter(|adb| !adb.is_empty()).unwrap_or_else(|| "adb".into());
        let mut this = Self { program, serial: String::new(), via: Cell::new(Via::Shell), interrupt };
        let (done, succeeded) =
            this.call(&[OsStr::new("devices"), OsStr::new("-l")], Some(LONG), &mut |_, _| ())?;
        if !succeeded {
            return Err(Error::new(Step::Device, format!("`adb devices` failed: {}", done.all())));
        }
        this.serial = choose(&listed(&done.out), serial).map_err(|what| Error::new(Step::Device, what))?;
        Ok(this)
    }

    /// Returns the serial number of the device.
    pub(crate) fn serial(&self) -> &str {
        &self.serial
    }

    /// Runs a script on the device: commands of its shell.
    pub(crate) fn shell(&self, script: &str) -> Result<Done, Error> {
        self.script(script, self.via.get(), Some(SHORT), &mut |_, _| ())
    }

    /// Runs a script for as long as it takes, and hands on what it says.
    pub(crate) fn stream(&self, script: &str, line: &mut dyn FnMut(Stream, &[u8])) -> Result<Done, Error> {
        self.script(script, self.via.get(), None, line)
    }

    /// Copies a file to the device.
    pub(crate) fn push(&self, from: &Path, to: &str) -> Result<(), Error> {
        self.copy(Step::Push, &["push".as_ref(), from.as_os_str(), to.as_ref()])
    }

    /// Copies a directory from the device; `to` does not exist.
    pub(crate) fn pull(&self, from: &str, to: &Path) -> Result<(), Error> {
        self.copy(Step::Pull, &["pull".as_ref(), from.as_ref(), to.as_os_str()])
    }

    /// Lets scripts run as root from now on, if the device allows it; tells whether they do.
    ///
    /// `restarted` is called before the device's side of adb is told to restart as root.
    pub(crate) fn become_root(&self, restarted: impl FnOnce()) -> Result<bool, Error> {
        let is_root = |via| {
            // A rooted device asks its owner, who may not be there: then it is as if there was no `su`.
            let done = self.script("id -u || id", via, Some(LONG), &mut |_, _| ());
            match done {
                Ok(done) => Ok(done.out.trim() == "0" || done.out.starts_with("uid=0(")),
                Err(e) if e.is_interrupted() => Err(e),
                Err(_) => Ok(false),
            }
        };
        for via in [Via::Shell, Via::SuProgram, Via::SuScript] {
            if is_root(via)? {
                self.via.set(via);
                return Ok(true);
            }
        }
        restarted();
        let (done, succeeded) = self.to_device(&["root".as_ref()], Some(LONG), &mut |_, _| ())?;
        if !succeeded || done.all().contains("cannot run as root") {
            return Ok(false);
        }
        self.wait(LONG)?;
        is_root(Via::Shell)
    }

    /// Undoes what [`become_root`](Self::become_root) did to the device.
    pub(crate) fn stop_root(&self) -> Result<(), Error> {
        self.to_device(&["unroot".as_ref()], Some(LONG), &mut |_, _| ())?;
        self.wait(LONG)
    }

    /// Waits until the device is there, if it is not.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<(), Error> {
        self.to_device(&["wait-for-device".as_ref()], Some(timeout), &mut |_, _| ()).map(drop)
    }

    fn script(
        &self,
        script: &str,
        via: Via,
        timeout: Option<Duration>,
        line: &mut dyn FnMut(Stream, &[u8]),
    ) -> Result<Done, Error> {
        let mut status = None;
        let mut said = Done::default();
        let wrapped = wrap(via, script);
        let args = ["shell".as_ref(), OsStr::new(&wrapped)];
        let (left, _) = self.to_device(&args, timeout, &mut |stream, text| {
            let text = match text {
                [text @ .., b'\r', b'\n'] => [text, b"\n"].concat(),
                text => text.to_owned(),
            };
            let (text, number) = match stream {
                Stream::Out => split_status(&text),
                Stream::Err => (&text[..], None),
            };
            status = number.or(status);
            let kept = if stream == Stream::Out { &mut said.out } else { &mut said.err };
            kept.push_str(&String::from_utf8_lossy(text));
            if !text.is_empty() {
                line(stream, text);
            }
        })?;
        match status {
            Some(status) => Ok(Done { status, ..said }),
            None => Err(self.lost(&left)),
        }
    }

    fn copy(&self, step: Step, args: &[&OsStr]) -> Result<(), Error> {
        let (done, succeeded) = self.to_device(args, None, &mut |_, _| ())?;
        let said = done.all();
        if succeeded {
            return Ok(());
        }
        let [verb, from, to] = args else { return Err(self.lost(&done)) };
        let what = format!("`adb {} {} {}` failed: {said}", verb.display(), from.display(), to.display());
        Err(match self.explain(&said) {
            _ if is_full(&said) && step == Step::Push => Error::new(step, format!("{}: {said}", self.full())),
            Some(why) => Error::new(step, format!("{what}; {why}")),
            None => Error::new(step, what),
        })
    }

    /// Says that the device has no room left.
    pub(crate) fn full(&self) -> String {
        format!(
            "the disk of {0} is full: make room (`adb -s {0} shell df /data` shows how much there is)",
            self.serial
        )
    }

    /// Says that a command did not get to its end.
    fn lost(&self, said: &Done) -> Error {
        let said = said.all();
        let why = self.explain(&said).unwrap_or_else(|| {
            format!(
                "the connection to {} broke: connect it again and see that `adb devices` lists it",
                self.serial
            )
        });
        Error::new(Step::Device, if said.is_empty() { why } else { format!("{why} (adb: {said})") })
    }

    /// What adb's words about a device mean.
    fn explain(&self, said: &str) -> Option<String> {
        let serial = &self.serial;
        match said {
            _ if said.contains("unauthorized") => Some(unauthorised(serial)),
            _ if said.contains("device offline") => Some(offline(serial)),
            _ if said.contains("not found") && said.contains("device") || said.contains("no devices") => {
                Some(format!("{serial} is gone: connect it again and see that `adb devices` lists it"))
            }
            _ => None,
        }
    }

    fn to_device(
        &self,
        args: &[&OsStr],
        timeout: Option<Duration>,
        line: &mut dyn FnMut(Stream, &[u8]),
    ) -> Result<(Done, bool), Error> {
        let all = [&["-s".as_ref(), OsStr::new(&self.serial)], args].concat();
        self.call(&all, timeout, line)
    }

    /// Runs adb; returns what it said, and whether it succeeded.
    fn call(
        &self,
        args: &[&OsStr],
        timeout: Option<Duration>,
        line: &mut dyn FnMut(Stream, &[u8]),
    ) -> Result<(Done, bool), Error> {
        let mut done = Done::default();
        let mut command = Command::new(&self.program);
        let ended = child::run(command.args(args), self.interrupt, timeout, false, |stream, text| {
            let kept = if stream == Stream::Out { &mut done.out } else { &mut done.err };
            kept.push_str(&String::from_utf8_lossy(text));
            line(stream, text);
        });
        match ended {
            Ok(Ended::ByItself(status)) => Ok((done, status.success())),
            Ok(Ended::Interrupted(signal)) => Err(Error::interrupted(signal)),
            Ok(Ended::TimedOut) => {
                let serial = if self.serial.is_empty() { "adb" } else { &self.serial };
                Err(Error::new(
                    Step::Device,
                    format!("{serial} does not answer: connect the device again, then `adb kill-server`"),
                ))
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(Error::new(
                Step::Device,
                format!(
                    "there is no {}: install Android's platform-tools \
                     (https://developer.android.com/tools/releases/platform-tools), or say with \
                     ADB=/path/of/adb where it is",
                    self.program.display()
                ),
            )),
            Err(e) => Err(at(Step::Device, format!("{} can't be run", self.program.display()))(e)),
        }
    }
}

/// Whether a disk is full, by what a program says that wanted to write to it.
pub(crate) fn is_full(said: &str) -> bool {
    said.contains("No space left on device")
}

/// Cuts the status off a line; what is before it is the last, unfinished line of the script's.
fn split_status(line: &[u8]) -> (&[u8], Option<i32>) {
    let at = line.windows(STATUS.len()).rposition(|window| window == STATUS.as_bytes());
    let number = |at: usize| str::from_utf8(&line[at + STATUS.len()..]).ok()?.trim_end().parse().ok();
    match at.and_then(|at| Some((at, number(at)?))) {
        Some((at, number)) => (&line[..at], Some(number)),
        None => (line, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "* daemon not running; starting now at tcp:5037\nList of devices attached\n\
        emulator-5554          device product:sdk_gphone64_x86_64 model:sdk_gphone64 transport_id:1\n\
        0A1B2C                 unauthorized usb:1-1 transport_id:2\n\
        XYZ                    no permissions (missing udev rules?); see [http://developer.android.com/]\n\
        192.168.1.9:5555\toffline\n\n";

    #[test]
    fn devices_are_read() {
        let devices = listed(LIST);
        let states: Vec<_> = devices.iter().map(|device| (&device.serial[..], &device.state[..])).collect();
        assert_eq!(
            states,
            [
                ("emulator-5554", "device"),
                ("0A1B2C", "unauthorized"),
                ("XYZ", "no permissions"),
                ("192.168.1.9:5555", "offline")
            ]
        );
        assert_eq!(devices[0].model.as_deref(), Some("sdk_gphone64"));
    }

    #[test]
    fn the_device_is_chosen() {
        let devices = listed(LIST);
        assert_eq!(choose(&devices, Some("emulator-5554")).unwrap(), "emulator-5554");
        assert_eq!(choose(&devices[..1], None).unwrap(), "emulator-5554");
        let why = |serial| choose(&devices, serial).unwrap_err();
        assert!(why(None).starts_with("there are 4 devices: emulator-5554 (sdk_gphone64, device), 0A1B2C ("));
        assert!(why(Some("XYZ")).contains("udev"));
        let mut recovery = devices[0].clone();
        recovery.state = "recovery".into();
        assert!(choose(&[recovery], None).unwrap_err().contains("boot Android"));
    }

    #[test]
    fn scripts_say_how_they_ended() {
        assert_eq!(wrap(Via::Shell, "exit 3"), "( exit 3\n); echo on-device-status=$?");
        assert_eq!(wrap(Via::SuScript, "echo 'a'"), r"su -c 'echo '\''a'\'''; echo on-device-status=$?");
        assert_eq!(split_status(b"on-device-status=0\n"), (&b""[..], Some(0)));
        assert_eq!(split_status(b"half a lineon-device-status=127\n"), (&b"half a line"[..], Some(127)));
        assert_eq!(split_status(b"a line\n"), (&b"a line\n"[..], None));
        assert_eq!(split_status(b"on-device-status=?\n"), (&b"on-device-status=?\n"[..], None));
    }
}
