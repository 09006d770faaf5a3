//! Finds the kernel's events of a category. A category is one of Android's names, or the name of a group or an event in
//! the kernel.

use std::fs;
use std::path::Path;

use crate::command::terminal::{Failure, Result, say};

/// The categories and their events or groups of events. A kernel may have only some of these events.
const CATEGORIES: [(&str, &str); 9] = [
    (
        "sched",
        "sched/sched_switch sched/sched_waking sched/sched_wakeup_new sched/sched_process_exit \
         sched/sched_process_free sched/sched_blocked_reason task/task_newtask task/task_rename",
    ),
    ("freq", "power/cpu_frequency power/clock_set_rate power/clock_enable power/clock_disable"),
    ("idle", "power/cpu_idle"),
    ("irq", "irq ipi"),
    (
        "disk",
        "block/block_rq_issue block/block_rq_complete ext4/ext4_sync_file_enter \
         ext4/ext4_sync_file_exit",
    ),
    ("workq", "workqueue"),
    (
        "memory",
        "kmem/rss_stat oom/oom_score_adj_update vmscan/mm_vmscan_direct_reclaim_begin \
         vmscan/mm_vmscan_direct_reclaim_end",
    ),
    ("sync", "dma_fence sync_trace"),
    ("binder", "binder"),
];

fn ours(name: &str) -> Option<&'static str> {
    CATEGORIES.iter().find(|(category, _)| *category == name).map(|(_, events)| *events)
}

fn no_category(name: &str, groups: &str) -> Failure {
    let ours = CATEGORIES.map(|(category, _)| category).join(", ");
    Failure::new(format!("{name:?} is no category; there are {ours}; and the kernel's groups{groups}"))
}

/// Returns the events of these categories, as paths below the directory `events` of tracefs. `root` is the directory of
/// tracefs, or `None` if this user can't read tracefs. In that case, the function does not check whether the events
/// exist.
///
/// A name that is not in [`CATEGORIES`] is one of the kernel's own names: a group of events (`net`) or an
/// event (`net/netif_rx`).
pub(crate) fn events(root: Option<&Path>, names: &[String]) -> Result<Vec<String>> {
    let events = root.map(|root| root.join("events"));
    let is_there =
        |event: &str| events.as_ref().is_none_or(|events| events.join(event).join("enable").exists());
    let mut found = Vec::new();
    for name in names {
        let before = found.len();
        match (ours(name), &events) {
            (Some(ours), _) => {
                found.extend(ours.split(' ').filter(|event| is_there(event)).map(str::to_owned))
            }
            (None, None) if is_name(name) => {
                say(format_args!("this user can't see whether this kernel has events of {name}"));
                found.push(name.clone());
            }
            (None, Some(_)) if is_name(name) && is_there(name) => found.push(name.clone()),
            (None, Some(events)) => return Err(no_category(name, &format!(": {}", groups(events)))),
            (None, None) => return Err(no_category(name, "")),
        }
        if found.len() == before {
            return Err(Failure::new(format!("this kernel has none of the events of {name:?}")));
        }
    }
    Ok(found)
}

/// Returns whether a name has the form `GROUP` or `GROUP/EVENT`. Such a name can't lead out of the directory `events`.
/// The name of the group `ftrace` is not accepted.
fn is_name(name: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    name.split('/').count() <= 2 && name.split('/').all(is_part) && name != "ftrace"
}

fn groups(events: &Path) -> String {
    let entries = fs::read_dir(events).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .filter(|entry| entry.path().is_dir())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| is_name(name))
        .collect();
    names.sort();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn categories_become_the_events_that_are_there() {
        let root = tempfile::tempdir().unwrap();
        for event in ["sched", "sched/sched_switch", "net", "net/netif_rx"] {
            fs::create_dir_all(root.path().join("events").join(event)).unwrap();
            fs::write(root.path().join("events").join(event).join("enable"), "0").unwrap();
        }
        let of = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            events(Some(root.path()), &names).map_err(|e| e.to_string())
        };
        assert_eq!(of(&["sched", "net"]).unwrap(), ["sched/sched_switch", "net"]);
        assert_eq!(of(&["net/netif_rx"]).unwrap(), ["net/netif_rx"]);
        let unknown = of(&["shed"]).unwrap_err();
        assert!(unknown.contains("\"shed\" is no category") && unknown.contains("net, sched"), "{unknown}");
        assert!(of(&["idle"]).unwrap_err().contains("none of the events"));
        for name in ["", "..", "../events/net", "net/../net", "net/netif_rx/x", "/net", "header_page"] {
            assert!(of(&[name]).unwrap_err().contains("no category"), "{name}");
        }
    }
}
