//! The modules of this crate, of `atrace-perfetto` and of `atrace-bill` depend on each other in one direction: each
//! module depends only on modules before it in the lists below. The test reads the names after `crate::` in their
//! sources, without their tests.

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
            "no_perfetto" => "producer", // It replaces that module on other systems.
            name => name,
        };
        add(&path, found.entry(module.to_owned()).or_default());
    }
    found.remove("tests");
    found
}

/// Returns the code of a file, without comments and tests.
fn code(path: &Path) -> String {
    let is_test = ["tests.rs", "reference.rs"].iter().any(|name| path.ends_with(name));
    let text = if is_test { String::new() } else { fs::read_to_string(path).unwrap() };
    let begins = ["#[cfg(test)]\nmod tests {", "#[cfg(test)]\npub(crate) mod tests {", "#[cfg(all(test"];
    let end = begins.iter().find_map(|begin| text.find(begin));
    let lines = text[..end.unwrap_or(text.len())].lines();
    lines.map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
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

/// Returns the dependencies between a crate's modules.
fn dependencies(sources: &Path) -> BTreeSet<(String, String)> {
    let files = files(sources);
    let names = root_names(&code(&sources.join("lib.rs")));
    let mut found = BTreeSet::new();
    for (module, paths) in files.iter().filter(|(module, _)| *module != "lib") {
        for path in paths {
            let code = code(path);
            let mut named = named_after(&code, "crate::");
            let directory = if path.ends_with("mod.rs") { path.parent() } else { Some(path.as_path()) };
            if directory.and_then(Path::parent) == Some(sources) {
                named.extend(named_after(&code, "super::"));
            }
            // The module `sync` is defined in the root file itself.
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

/// Returns the dependencies on a module that is not lower in this order.
fn upward(found: &BTreeSet<(String, String)>, order: &[&str]) -> Vec<String> {
    let place = |module: &String| {
        order.iter().position(|name| name == module).unwrap_or_else(|| panic!("`{module}` is in no list"))
    };
    let is_upward = |(from, to): &&(String, String)| place(from) <= place(to);
    found.iter().filter(is_upward).map(|(from, to)| format!("{from} uses {to}")).collect()
}

/// Checks a crate that has at least `least` dependencies between its modules.
fn check(sources: &str, order: &[&str], least: usize) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join(sources);
    let unlisted: Vec<_> =
        files(&sources).into_keys().filter(|name| !order.contains(&name.as_str())).collect();
    assert!(unlisted == ["lib"], "to be listed: {unlisted:?}");
    let found = dependencies(&sources);
    assert_eq!(upward(&found, order), [""; 0]);
    // In the reversed order no dependency points down, so all of them are reported.
    let reversed: Vec<_> = order.iter().rev().copied().collect();
    assert!(found.len() >= least && upward(&found, &reversed).len() == found.len(), "{found:?}");
}

#[test]
fn modules_use_only_lower_ones() {
    check("src", &ATRACE, 50);
}

#[test]
fn modules_of_the_producer_use_only_lower_ones() {
    check("../crates/atrace-perfetto/src", &PERFETTO, 50);
}

#[test]
fn dependencies_are_found() {
    let found = named_after(
        "use crate::a; use crate::{b::{self, c}, d, e::*}; $crate::f(crate::g::h); other::crate::i",
        "crate::",
    );
    assert_eq!(found, ["a", "b", "d", "e", "g"]);
    let found =
        root_names("pub use one::{A, B};\npub use two::three::C;\npub use four::*;\npub use five::D as E;");
    let found: Vec<_> =
        found.iter().map(|(name, module)| (name.as_deref().unwrap_or("*"), module.as_str())).collect();
    assert_eq!(found, [("*", "four"), ("A", "one"), ("B", "one"), ("C", "two"), ("E", "five")]);
}

#[test]
fn modules_of_the_bill_use_only_lower_ones() {
    check("../crates/bill/src", &BILL, 8);
}
