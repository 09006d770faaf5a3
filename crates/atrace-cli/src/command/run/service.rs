//! `atrace run` as a tracing service. The service is a thread of this command, and only the program's user may connect
//! to its socket.
//!
//! The trace is written to a hidden file next to the final file. The hidden file is a valid trace at any moment. At the
//! end of the recording, it gets its final name. If the command is killed, the hidden file stays. If an error occurs
//! after the program has started, the command still saves the trace, and then returns the error.

use std::fs::File;
use std::path::Path;

use crate::escape::shown;
use crate::service::{Counts, CutOff, Ended, Lost, Report, Service, Storage, Terms};
use rustix::process::{Signal, geteuid};

use atrace_sys::memory::has_memory_files;

use super::kernel::Kernel;
use super::{RunArgs, default_name, tell_end};
use crate::command::caller::Caller;
use crate::command::file::{Existing, Output, numbered};
use crate::command::program::{
    LARGEST, ServiceSocket, Signals, Witness, code, memory_kb, start, wait, wait_for_rest,
};
use crate::command::terminal::{Failure, Result, failed, say, shown_path, thousands};

/// The environment variable that tells the program the path of the socket.
const SOCKET: &str = "PERFETTO_PRODUCER_SOCK_NAME";

/// The default size of the memory for `--ring`, in KB.
const RING: u64 = 65536;

pub(super) fn record(args: &RunArgs) -> Result<u8> {
    let caller = Caller::behind_sudo()?;
    let signals = Signals::catch(args.ring.then_some(Signal::USR1))?;
    let path = args.output.clone().unwrap_or_else(|| default_name(&args.command, ".pftrace"));
    let mut kernel = Kernel::make(args)?;
    let existing = Existing::rule(args.force, args.output.is_some());
    let output = Output::create(&path, existing, caller.as_ref(), true)?;
    let file = output.file().map_err(failed(shown_path(&path)))?;
    let user = if args.root { None } else { caller.as_ref() };
    let uid = user.map_or_else(|| geteuid().as_raw(), |user| user.uid);
    if uid != geteuid().as_raw() && !has_memory_files() {
        return Err(Failure::new(format!(
            "this kernel (before 3.17) has no memory files, without which user {uid} could end this command: run it without \
             sudo, or with --kernel or --root"
        )));
    }
    let (place, listener) = ServiceSocket::make(user)?;
    let keep = if args.ring {
        Storage::Ring { bytes: args.buffer.unwrap_or(RING).saturating_mul(1024) }
    } else {
        Storage::File { file: file.try_clone()?, max: args.max_size }
    };
    let terms = Terms { waits: args.wait, ..Terms::default() };
    let service = Service::start_for(listener, uid, &terms, keep).map_err(failed("starting the service"))?;
    let mut witness = Some(Witness::start(&signals)?);
    let memory = memory_kb();
    let variables = args.with_filter(&[
        (SOCKET, Some(&*place.path)),
        ("ATRACE_BACKEND", Some(Path::new("perfetto"))),
        ("ATRACE_MARKER", None),
        ("ATRACE_SHMEM_KB", Some(Path::new(&memory))),
    ]);
    if let Some(kernel) = &mut kernel {
        service.add(kernel.start()?);
    }
    let stage = [("--names", kernel.as_ref().and_then(Kernel::names))];
    let mut child = start(&args.command, user, &signals, &stage, &variables)?;
    let (mut is_over, mut saves, mut taken) = (false, 0, Ok(()));
    let mut look = |asks| {
        if let Some(kernel) = kernel.as_mut().filter(|_| taken.is_ok()) {
            taken = kernel.take().map(|packets| service.add(packets));
            if let Err(e) = &taken {
                say(format_args!("no more events of the kernel are recorded: {e}"));
            }
        }
        if asks {
            saves += 1;
            let path = path.with_file_name(numbered(path.file_name().unwrap_or_default(), saves));
            save_once(&service, &path, existing, caller.as_ref());
        }
        if service.is_over() && !is_over {
            is_over = true;
            say("no more is recorded; the program goes on");
        }
        !is_over
    };
    let waited = wait(&mut child, &signals, witness.take().flatten(), |asks| _ = look(asks));
    let waited = waited.and_then(|(status, is_asked)| {
        tell_end(status);
        if !is_asked {
            let connected = || service.connected();
            wait_for_rest(uid, (SOCKET, &place.path), connected, &signals, look)?;
        }
        Ok(status)
    });
    let ended = kernel.as_mut().map_or(Ok(()), |kernel| kernel.end(|packets| service.add(packets)));
    let saved = if args.ring { service.save(file) } else { Ok(()) };
    let report = service.finish();
    drop(place);
    let why = silence(&report.counts, args);
    let is_whole = report.ended.is_none() && taken.is_ok() && ended.is_ok();
    let removed = kernel.map_or(Ok(()), |kernel| kernel.finish(is_whole).map(say));
    finish(output, report, saved, why)?;
    let status = waited?;
    taken.and(ended).and(removed)?;
    Ok(code(status))
}

/// Saves the file, and reports how many events were recorded and lost. If no event was recorded, `why` is the reason,
/// and is reported, too.
pub(crate) fn finish(
    output: Output,
    report: Report,
    saved: std::io::Result<()>,
    why: Option<String>,
) -> Result {
    let problem = format!("can't save {}", shown_path(output.named()));
    saved.map_err(failed(&problem))?;
    let path = output.finish().map_err(failed(problem))?;
    lines(&report).into_iter().chain(why).for_each(say);
    if let Some(Ended::Failed(e)) = report.ended {
        let unsaved = thousands(report.counts.unsaved);
        let path = shown_path(&path);
        return Err(Failure::new(format!(
            "{path} ends too early: {e}: {unsaved} events more, and what came later, are lost"
        )));
    }
    say(format_args!("saved {}: open it at https://ui.perfetto.dev", shown_path(&path)));
    Ok(())
}

/// Saves the present content of the ring to the file `path`. If that fails, the recording goes on.
fn save_once(service: &Service, path: &Path, existing: Existing, owner: Option<&Caller>) {
    let saved = Output::create(path, existing, owner, true).and_then(|output| {
        let problem = format!("can't save {}", shown_path(path));
        let file: File = output.file()?;
        service.save(file).map_err(failed(problem))?;
        output.finish()
    });
    match saved {
        Ok(path) => say(format_args!("saved {}", shown_path(&path))),
        Err(e) => say(e),
    }
}

/// Returns the lines about the numbers of recorded and lost events, and about the reasons for losses.
fn lines(report: &Report) -> Vec<String> {
    let Report { counts, cut_off, lost, ended } = report;
    let mut lines = Vec::new();
    let is_whole = counts.lost == 0 && counts.uncounted == 0 && counts.unsaved == 0;
    let lost_or_none = match counts.lost {
        0 if is_whole && ended.is_none() && cut_off.is_empty() => ", none lost".to_owned(),
        0 => String::new(),
        lost => format!(", {} lost", thousands(lost)),
    };
    lines.push(format!("{} events written{lost_or_none}", thousands(counts.events)));
    lines.extend(lost.iter().flat_map(|lost| lines_of(lost, counts)));
    let others = counts.lost.saturating_sub(lost.iter().map(Lost::events).sum());
    lines.extend(counted(others, "more were lost by other processes"));
    let text = "times programs with another library lost an unknown number of events, which came faster than they could be read";
    lines.extend(counted(counts.uncounted, text));
    lines.extend(counted(counts.invalid, "invalid packets were left out"));
    for CutOff { pid, name, fault } in cut_off {
        lines.push(format!("process {pid} ({}) was cut off: {fault}", shown(name)));
    }
    lines.extend(counted(counts.refused, "connections were refused"));
    if let Some(Ended::Full) = ended {
        lines.push(
            "the recording ended before the program, because the file has the size of --max-size: later events are not in it"
                .to_owned(),
        );
    }
    lines
}

/// Returns the reason why no event of the program was recorded, or `None` if events were recorded or lost.
fn silence(counts: &Counts, args: &RunArgs) -> Option<String> {
    let text = match counts {
        Counts { producers: 0, .. } => {
            "nobody connected: the program uses neither this library nor Perfetto's SDK, ended before its first event, has \
             elevated rights, or was started with another environment (env -i, sudo, su: keep PERFETTO_PRODUCER_SOCK_NAME \
             and ATRACE_BACKEND)"
        }
        Counts { events: 0, lost: 0, .. } => {
            let text = "the program connected and wrote no event".to_owned();
            return Some(args.about_filter().map_or(text.clone(), |filter| format!("{text}: {filter}")));
        }
        _ => return None,
    };
    Some(text.to_owned())
}

/// Returns the lines that report the losses of one process, with their reasons and remedies.
fn lines_of(lost: &Lost, counts: &Counts) -> Vec<String> {
    let Lost { pid, name, room, inside, early, kib, threads } = lost;
    let process = format!("process {pid} ({})", shown(name));
    let mut lines = Vec::new();
    if *room > 0 {
        let mut text =
            format!("{process} lost {} events, which came faster than they could be read", thousands(*room));
        let names: Vec<_> = threads.iter().map(|(tid, name)| format!("{} ({tid})", shown(name))).collect();
        if !names.is_empty() {
            text.push_str(&format!(", in the threads {}", names.join(", ")));
        }
        // The size of memory in which all lost events would have had room at the same time.
        let each = counts.bytes.checked_div(counts.events).unwrap_or(0).max(16);
        let needed = kib.saturating_add(room.saturating_mul(each) / 1024).min(LARGEST).next_power_of_two();
        let needed = needed.max(2 * kib).min(LARGEST);
        if *kib < LARGEST {
            text += &format!(
                ": its memory has {kib} KB; ATRACE_SHMEM_KB={needed} in its environment makes it {needed} KB, unless other \
                 processes have taken most of the 1 GiB for all"
            );
        } else {
            text += &format!(
                ": its memory has {kib} KB, the most there can be; `atrace run --wait` (without -c) has it wait for room \
                 instead"
            );
        }
        lines.push(text);
    }
    let others = [
        (inside, "events in signal handlers that interrupted an event, or in more threads than have room"),
        (
            early,
            "events before the connection to the recording: in a signal handler, which does not wait for it, or because the machine was busy for seconds",
        ),
    ];
    let others = others.into_iter().filter_map(|(count, text)| counted(*count, text));
    lines.extend(others.map(|text| format!("{process} lost {text}")));
    lines
}

/// Returns a text that consists of a number and `text`, or `None` if the number is 0.
fn counted(count: u64, text: &str) -> Option<String> {
    (count > 0).then(|| format!("{} {text}", thousands(count)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(lost: Lost) -> String {
        let counts =
            Counts { events: 1000, bytes: 20_000, lost: lost.events(), producers: 1, ..Counts::default() };
        lines(&Report { counts, lost: vec![lost], ..Report::default() }).join("\n")
    }

    #[test]
    fn a_loss_is_told_with_its_threads_and_what_helps() {
        let threads = vec![(8, b"main".to_vec()), (9, b"\x1b[2J".to_vec())];
        let lost = Lost { pid: 7, name: b"a".to_vec(), room: 1200, kib: 64, threads, ..Lost::default() };
        let text = said(lost.clone());
        assert!(
            text.starts_with("1,000 events written, 1,200 lost\nprocess 7 (a) lost 1,200 events"),
            "{text}"
        );
        assert!(text.contains("in the threads main (8), ") && !text.contains('\x1b'), "{text}");
        assert!(text.contains("has 64 KB; ATRACE_SHMEM_KB=128 in"), "{text}");
        for (room, kib, needed) in
            [(1, 1000, "=2000 "), (1_000_000, 1024, "=32768 "), (1000, 32768, "the most")]
        {
            let text = said(Lost { room, kib, ..lost.clone() });
            assert!(text.contains(needed), "{text}");
        }
        let text = said(Lost { inside: 2, early: 3, ..Lost::default() });
        assert!(
            text.contains("lost 2 events in signal handlers") && text.contains("lost 3 events before"),
            "{text}"
        );
    }

    #[test]
    fn what_is_not_whole_is_not_called_so() {
        let whole = Counts { events: 5, producers: 1, ..Counts::default() };
        let of = |report: &Report| lines(report).join("\n");
        assert_eq!(of(&Report { counts: whole, ..Report::default() }), "5 events written, none lost");
        for counts in
            [Counts { lost: 1, ..whole }, Counts { uncounted: 1, ..whole }, Counts { unsaved: 1, ..whole }]
        {
            assert!(!of(&Report { counts, ..Report::default() }).contains("none lost"));
        }
        for ended in [Ended::Full, Ended::Failed(std::io::ErrorKind::StorageFull.into())] {
            let report = Report { counts: whole, ended: Some(ended), ..Report::default() };
            assert!(!of(&report).contains("none lost"));
        }
    }
}
