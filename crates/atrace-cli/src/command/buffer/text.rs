//! Parses the names of processes and threads in texts of the kernel. A name may contain any byte except NUL.

use std::collections::{HashMap, HashSet};

use crate::tracefs::markers;

/// The processes that started or executed a program, according to a text of events.
#[derive(Default)]
pub(crate) struct Started {
    pub(crate) processes: HashSet<u32>,
    /// For each process, the name of the program that it has executed last.
    pub(crate) names: HashMap<u32, String>,
    /// The number of events in the text.
    pub(crate) events: u64,
}

/// Parses events such as `sched_process_exec: filename=/bin/sh pid=42 old_pid=42` and `task_newtask: pid=43 comm=sh …`.
pub(crate) fn started(text: &[u8]) -> Started {
    let (mut all, mut at) = (Started::default(), 0);
    while let Some((_, event)) = markers::next(text, &mut at) {
        all.events += 1;
        let event = String::from_utf8_lossy(event);
        let new = event
            .strip_prefix("task_newtask: pid=")
            .and_then(|rest| rest.split(' ').next()?.parse::<u32>().ok());
        all.processes.extend(new);
        let name = event.strip_prefix("sched_process_exec: filename=").and_then(|event| {
            let (path, rest) = event.rsplit_once(" pid=")?;
            let name = path.rsplit('/').next().filter(|name| !name.is_empty())?;
            Some((rest.split(' ').next()?.parse::<u32>().ok()?, name.to_owned()))
        });
        all.processes.extend(name.iter().map(|(pid, _)| *pid));
        all.names.extend(name);
    }
    all
}

/// Parses lines `ID NAME`, which have the id and the name of a thread. A name that contains a newline can imitate
/// another line, so an id that occurs twice gets no name.
pub(crate) fn kept(text: &[u8]) -> HashMap<u32, String> {
    let mut names = HashMap::<u32, Option<String>>::new();
    for line in text.split(|&byte| byte == b'\n') {
        let Some(space) = line.iter().position(|&byte| byte == b' ') else { continue };
        let (number, name) = line.split_at(space);
        let number = std::str::from_utf8(number).ok().and_then(|number| number.parse().ok());
        if let (Some(number), [_, name @ ..]) = (number, name) {
            let name = Some(String::from_utf8_lossy(name).into_owned());
            names.entry(number).and_modify(|name| *name = None).or_insert(name);
        }
    }
    names.into_iter().filter_map(|(number, name)| Some((number, name?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(task: &str, pid: u32, file: &str) -> String {
        format!(
            "{task:>16}-{pid:<7} [001] .....     1.000001: sched_process_exec: filename={file} pid={pid} old_pid={pid}\n"
        )
    }

    fn sorted(names: HashMap<u32, String>) -> Vec<(u32, String)> {
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort();
        names
    }

    #[test]
    fn the_last_program_counts() {
        let text = [
            "# tracer: nop\n".to_owned(),
            line("sh", 42, "/bin/sh"),
            line("a b", 43, "./dir/a pid=b"),
            line("x", 42, "x"),
            line("x", 44, ""),
            line("x", 42, "")
                .replace("sched_process_exec: filename= pid=42", "task_newtask: pid=45 comm=x pid=46"),
        ]
        .concat();
        let Started { names, processes, events } = started(text.as_bytes());
        assert_eq!(events, 5);
        assert_eq!(sorted(names), [(42, "x".to_owned()), (43, "a pid=b".to_owned())]);
        assert_eq!(processes, [42, 43, 45].into());
    }

    #[test]
    fn events_of_every_kernel_are_read() {
        for text in crate::tracefs::TEXTS {
            let Started { names, events, .. } = started(text.as_bytes());
            assert_eq!((sorted(names), events), (vec![(42, "sh".to_owned())], 5), "{text}");
        }
    }

    #[test]
    fn a_newline_ends_no_name() {
        let text = line("a\nb", 42, "/bin/a\nb") + &line("x", 43, "/bin/x");
        let Started { names, events, .. } = started(text.as_bytes());
        assert_eq!(events, 2);
        assert_eq!(sorted(names), [(42, "a\nb".to_owned()), (43, "x".to_owned())]);
        // A file name that imitates another event increases the number of events in the text. So this number differs
        // from the kernel's own count, which shows the forgery.
        let forged =
            line("x", 44, &format!("/bin/x pid=44 old_pid=44\n{}", line("init", 1, "evil").trim_end()));
        assert_eq!(started(forged.as_bytes()).events, 2);
    }

    #[test]
    fn a_kept_name_with_a_newline_names_nobody_else() {
        let names = kept(b"1 init\n42 a\n1 evil\n43 x y\n44\nnone\n");
        assert_eq!(sorted(names), [(42, "a".to_owned()), (43, "x y".to_owned())]);
    }
}
