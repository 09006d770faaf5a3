//! Tests that crates and modules depend on each other in one direction only. Each crate, and each module of a library
//! or of the command, depends only on those before it in the lists below. The tests read the dependencies in the
//! manifests, except dev-dependencies, and the names after `crate::` in the sources, except in test code.
//!
//! An entry with several names is a group of modules that use each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The modules of `atrace-perfetto`, from the lowest to the highest.
const PERFETTO: [&str; 31] = [
    "names",
    "proto",
    "wire",
    "abi",
    "completed",
    "filling",
    "pin",
    "memory",
    "foreign",
    "trace_file",
    "clock",
    "socket",
    "early",
    "pool",
    "args",
    "hash",
    "callsite",
    "track",
    "event",
    "category",
    "options",
    "connection_state",
    "changes",
    "packet",
    "unmatched",
    "interned",
    "writer",
    "startup",
    "link",
    "producer",
    "recording",
];

/// The modules of `atrace`, from the lowest to the highest.
const ATRACE: [&str; 23] = [
    "tags", "flags", "producer", "message", "name", "args", "event", "control", "gate", "sink", "load",
    "status", "state", "refresh", "backend", "watch", "attach", "events", "slice", "scoped", "tracer",
    "macros", "perfetto",
];

/// The modules of `atrace-bill`, from the lowest to the highest.
const BILL: [&str; 6] = ["estimate", "raw", "bill", "directives", "json", "table"];

/// The modules of `atrace-paired`, from the lowest to the highest.
const PAIRED: [&str; 7] = ["interval", "groups", "ranks", "looks", "sample", "simulated", "slices"];

/// The modules of `atrace-sys`, from the lowest to the highest.
const SYS: [&str; 24] = [
    "bindings",
    "c_text",
    "text",
    "panics",
    "glob",
    "word",
    "system",
    "futex",
    "clock",
    "timer",
    "usage",
    "memory",
    "privsep",
    "cutils",
    "ndk",
    "fork",
    "process",
    "properties",
    "fence",
    "thread",
    "marker",
    "state",
    "probe",
    "socket",
];

/// The modules of `atrace-subscriber`, from the lowest to the highest.
///
/// A span is represented by one word: the number of its callsite, or its slot in the span store. So `span` asks the
/// store about spans that have a slot. The store keeps the parents of its spans as such words. A thread's span stack
/// consists of such words, too. When the store closes a span that only one thread had entered, it removes the span from
/// this thread's stack. The stack reads the stored fields and flows of the spans that a thread enters.
const SUBSCRIBER: [&str; 17] = [
    "parts",
    "async_spans",
    "directives",
    "fields",
    "callsites",
    "slots",
    "interest_cache",
    "filter",
    "lanes",
    "span span_store span_stack",
    "metered",
    "typed",
    "recorder",
    "layer",
    "subscriber",
    "live",
    "log_bridge",
];

/// The modules of `atrace-cli`, from the lowest to the highest.
const CLI: [&str; 8] =
    ["escape", "process", "privsep", "tracefs", "service", "consumer", "doctor", "command"];

/// The modules of the command, from the lowest to the highest.
const COMMAND: [&str; 12] = [
    "terminal", "caller", "stores", "file", "notes", "buffer", "program", "run", "record", "cost", "switch",
    "doctor",
];

/// The crates of the workspace, from the lowest to the highest. A crate's tests may use higher crates.
const CRATES: [&str; 12] = [
    "atrace-sys",
    "atrace-perfetto",
    "atrace-paired",
    "atrace-bill",
    "atrace",
    "atrace-subscriber",
    "atrace-cli",
    "atrace-plugin",
    "cc-bench",
    "atrace-benches",
    "atrace-models",
    "atrace-real-service",
];

/// Returns the files of each module of a crate.
fn files(sources: &Path) -> BTreeMap<String, Vec<PathBuf>> {
    fn add(place: &Path, files: &mut Vec<PathBuf>) {
        if place.is_dir() {
            fs::read_dir(place).unwrap().for_each(|entry| add(&entry.unwrap().path(), files));
        } else {
            files.push(place.to_owned());
        }
    }

    let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for entry in fs::read_dir(sources).unwrap() {
        let path = entry.unwrap().path();
        let module = match path.file_stem().unwrap().to_str().unwrap() {
            "no_attach" => "attach",
            "no_perfetto" => "producer", // The module `no_perfetto` replaces `producer` on other systems.
            name => name,
        };
        add(&path, found.entry(module.to_owned()).or_default());
    }
    // These files belong to no module of the lists: the root file, a program that calls the library, replacements of
    // parts of several modules on other systems, and tests.
    ["lib", "mod", "main", "unsupported", "tests"].iter().for_each(|name| _ = found.remove(*name));
    found
}

/// Returns the code of a file, without comments and tests.
fn code(path: &Path) -> String {
    let is_test = ["tests.rs", "reference.rs"].iter().any(|name| path.ends_with(name));
    let text = if is_test { String::new() } else { fs::read_to_string(path).unwrap() };
    let lines: Vec<_> = text.lines().collect();
    let is_begin = |line: &&str| {
        ["mod tests {", "pub(crate) mod tests {"].contains(line) || line.starts_with("#[cfg(all(test")
    };
    let end = lines.iter().position(is_begin).unwrap_or(lines.len());
    let lines = lines[..end].iter().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

fn is_name(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Returns the first name of each path in a list in braces. `text` begins after the opening brace.
fn first_names(text: &str) -> Vec<String> {
    let (mut depth, mut names, mut is_first) = (1, vec![String::new()], true);
    for character in text.chars() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        match character {
            _ if depth == 0 => break,
            ',' if depth == 1 => {
                names.push(String::new());
                is_first = true;
            }
            _ if depth == 1 && is_first && is_name(character) => names.last_mut().unwrap().push(character),
            _ => is_first &= character.is_whitespace() && names.last().unwrap().is_empty(),
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

/// Returns the names that follow `root` in the code. For example, `name` and `other` follow `crate::` in `crate::{name,
/// other::item}`.
fn named_after(code: &str, root: &str) -> Vec<String> {
    let is_path =
        |at: usize| !code[..at].ends_with(|before| is_name(before) || before == ':' || before == '$');
    let rests =
        code.match_indices(root).filter(|(at, _)| is_path(*at)).map(|(at, _)| &code[at + root.len()..]);
    rests
        .flat_map(|rest| match rest.strip_prefix('{') {
            Some(list) => first_names(list),
            None => vec![rest.chars().take_while(|character| is_name(*character)).collect()],
        })
        .collect()
}

/// Returns the names that the crate's root re-exports, each with its module. The name `None` means a glob (`*`): all
/// names that are not listed come from its module.
fn root_names(code: &str) -> BTreeMap<Option<String>, String> {
    let mut names = BTreeMap::new();
    for part in code.split("pub use ").skip(1) {
        let (path, what) = part.split(';').next().unwrap().rsplit_once("::").unwrap_or_default();
        let (path, what) = part.split_once("::{").map_or((path, what), |(path, _)| {
            if part.find(';') < part.find('{') { (path, what) } else { (path, &part[path.len() + 2..]) }
        });
        let module = path.split("::").find(|name| !["crate", "self"].contains(name)).unwrap_or_default();
        let mut name = |name: &str| _ = names.insert(Some(name.to_owned()), module.to_owned());
        match what.strip_prefix('{') {
            Some(list) => first_names(list).iter().for_each(|found| name(found)),
            None if what == "*" => _ = names.insert(None, module.to_owned()),
            None => name(what.split(" as ").last().unwrap_or_default()),
        }
    }
    names
}

/// Returns the dependencies between the modules in a directory, as pairs: the first module uses the second one. If
/// `root` is `crate::`, the directory contains the modules of the crate. Otherwise it contains the submodules of the
/// module `root`.
fn dependencies(sources: &Path, root: &str) -> BTreeSet<(String, String)> {
    let files = files(sources);
    let mut names = root_names(&code(&sources.join(if root == "crate::" { "lib.rs" } else { "mod.rs" })));
    // Macros are used by names at the crate's root, so the defining module of each macro is recorded.
    for (module, paths) in &files {
        for macros in paths.iter().map(|path| code(path)) {
            let defined = macros.split("macro_rules! ").skip(1);
            let name = |text: &str| text.chars().take_while(|character| is_name(*character)).collect();
            names.extend(defined.map(|text| (Some(name(text)), module.clone())));
        }
    }
    let mut found = BTreeSet::new();
    for (module, paths) in &files {
        for path in paths {
            let code = code(path);
            let mut named = named_after(&code, root);
            let place = if path.ends_with("mod.rs") { path.parent().unwrap() } else { path };
            let depth = place.strip_prefix(sources).unwrap().components().count();
            named.extend(named_after(&code, &"super::".repeat(depth)));
            // `sync` is ignored, because it is defined in the root file itself and has no file.
            for name in named.into_iter().filter(|name| name != "sync") {
                let found_in = if files.contains_key(&name) {
                    name
                } else {
                    let module = names.get(&Some(name.clone())).or(names.get(&None));
                    module.unwrap_or_else(|| panic!("{}: whose is `{name}`?", path.display())).clone()
                };
                if found_in != *module {
                    found.insert((module.clone(), found_in));
                }
            }
        }
    }
    found
}

/// Returns the index of the entry that contains this module or crate.
fn place(order: &[&str], name: &str) -> usize {
    let is_it = |entry: &&str| entry.split(' ').any(|one| one == name);
    order.iter().position(is_it).unwrap_or_else(|| panic!("`{name}` is in no list"))
}

/// Returns the dependencies on a module whose entry is higher, that is, later in `order`.
fn upward(found: &BTreeSet<(String, String)>, order: &[&str]) -> Vec<String> {
    let is_upward = |(from, to): &&(String, String)| place(order, from) < place(order, to);
    found.iter().filter(is_upward).map(|(from, to)| format!("{from} uses {to}")).collect()
}

/// Checks that the modules in a directory use only modules of lower entries or of their own entry. Also checks that at
/// least `least` dependencies were found.
fn check(sources: &str, root: &str, order: &[&str], least: usize) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join(sources);
    let listed: BTreeSet<_> = order.iter().flat_map(|entry| entry.split(' ')).map(str::to_owned).collect();
    assert_eq!(files(&sources).into_keys().collect::<BTreeSet<_>>(), listed);
    let found = dependencies(&sources, root);
    assert_eq!(upward(&found, order), [""; 0]);
    // Checks [`upward`] itself: if the order is reversed, it reports all dependencies except those within a group.
    let reversed: Vec<_> = order.iter().rev().copied().collect();
    let is_within = |(from, to): &&(String, String)| place(order, from) == place(order, to);
    let within: Vec<_> = found.iter().filter(is_within).collect();
    assert_eq!(upward(&found, &reversed).len(), found.len() - within.len());
    assert!(found.len() >= least, "{found:?}");
    // Each module of a group must use another module of the group, and must be used by one.
    for entry in order.iter().filter(|entry| entry.contains(' ')) {
        let is_used = |name: &str| within.iter().any(|(_, to)| to == name);
        let uses = |name: &str| within.iter().any(|(from, _)| from == name);
        assert!(entry.split(' ').all(|name| is_used(name) && uses(name)), "no group: {entry}");
    }
}

#[test]
fn modules_use_only_lower_ones() {
    check("src", "crate::", &ATRACE, 50);
}

#[test]
fn modules_of_the_producer_use_only_lower_ones() {
    check("../crates/atrace-perfetto/src", "crate::", &PERFETTO, 50);
}

#[test]
fn dependencies_are_found() {
    let found = named_after(
        "use crate::a; use crate::{b::{self, c}, d, e::*}; $crate::f(crate::g::h); other::crate::i",
        "crate::",
    );
    assert_eq!(found, ["a", "b", "d", "e", "g"]);
    let found = named_after("use super::super::a; use super::b; c::super::super::d", "super::super::");
    assert_eq!(found, ["a"]);
    let found =
        root_names("pub use one::{A, B};\npub use two::three::C;\npub use four::*;\npub use five::D as E;");
    let found: Vec<_> =
        found.iter().map(|(name, module)| (name.as_deref().unwrap_or("*"), module.as_str())).collect();
    assert_eq!(found, [("*", "four"), ("A", "one"), ("B", "one"), ("C", "two"), ("E", "five")]);
}

#[test]
fn modules_of_the_bill_use_only_lower_ones() {
    check("../crates/bill/src", "crate::", &BILL, 8);
}

#[test]
fn modules_of_the_statistics_use_only_lower_ones() {
    check("../crates/paired/src", "crate::", &PAIRED, 5);
}

#[test]
fn modules_of_the_systems_interfaces_use_only_lower_ones() {
    check("../atrace-sys/src", "crate::", &SYS, 40);
}

#[test]
fn modules_of_the_subscriber_use_only_lower_ones() {
    check("../atrace-subscriber/src", "crate::", &SUBSCRIBER, 35);
}

#[test]
fn modules_of_the_command_use_only_lower_ones() {
    check("../crates/atrace-cli/src", "crate::", &CLI, 15);
    check("../crates/atrace-cli/src/command", "crate::command::", &COMMAND, 30);
}

/// Returns the crates of the workspace on which a crate's code depends. Dependencies of the crate's tests are not
/// included.
fn crates_of(manifest: &str) -> Vec<&str> {
    let mut is_of_code = false;
    let mut found = Vec::new();
    for line in manifest.lines() {
        if let Some(section) = line.strip_prefix('[') {
            is_of_code = section.ends_with("dependencies]") && !section.ends_with("dev-dependencies]");
        }
        let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
        if is_of_code && CRATES.contains(&name) {
            found.push(name);
        }
    }
    found
}

#[test]
fn crates_use_only_lower_ones() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let workspace = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let members = workspace.lines().find_map(|line| line.strip_prefix("members = [")).unwrap();
    let (mut names, mut found) = (BTreeSet::new(), 0);
    for member in members.split('"').skip(1).step_by(2) {
        let manifest = fs::read_to_string(root.join(member).join("Cargo.toml")).unwrap();
        let name = manifest.lines().find_map(|line| line.strip_prefix("name = ")).unwrap().trim_matches('"');
        for other in crates_of(&manifest) {
            assert!(place(&CRATES, other) < place(&CRATES, name), "{name} uses {other}");
            found += 1;
        }
        names.insert(name.to_owned());
    }
    assert_eq!(names, CRATES.map(str::to_owned).into());
    assert!(found > 20, "{found}");
}
