//! The command line of `instructions`.

use std::path::PathBuf;

use clap::Parser;

/// Counts the instructions of every kind of event under callgrind, and holds them against bounds
#[derive(Clone, Debug, PartialEq, Eq, Parser)]
#[command(name = "instructions", args_override_self = true, after_help = NEEDS)]
pub(crate) struct Args {
    /// Fail where an operation takes over 3 % more than benches/bounds.toml says
    #[arg(long)]
    pub(crate) check: bool,
    /// Write the counts to benches/bounds.toml
    #[arg(long, conflicts_with = "check")]
    pub(crate) update: bool,
    /// Count twice, and fail where the two differ by more than 0.1 %, but by Perfetto's way
    #[arg(long)]
    pub(crate) twice: bool,
    /// Other bounds
    #[arg(long, value_name = "FILE")]
    pub(crate) bounds: Option<PathBuf>,
    /// Count nothing: take the rows of an earlier run
    #[arg(long, value_name = "FILE", conflicts_with = "twice")]
    pub(crate) from: Option<PathBuf>,
}

const NEEDS: &str = "\
It needs valgrind, and gungraun-runner of the version that Cargo.lock has of gungraun:

  apt-get install valgrind && cargo install gungraun-runner --version VERSION

Exit status: 0; 1 too many instructions; 2 usage, or something that is needed is not there.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines() {
        let parse = |line: &str| {
            let line = ["instructions"].into_iter().chain(line.split_whitespace());
            Args::try_parse_from(line).map_err(|e| e.to_string())
        };
        let args = parse("--check --twice --bounds b").unwrap();
        assert!(args.check && args.twice && !args.update);
        assert_eq!(args.bounds, Some("b".into()));
        for (line, part) in [
            ("--check --update", "'--check' cannot be used with '--update'"),
            ("--bounds", "--bounds <FILE>"),
            ("--twice --from x", "'--twice' cannot be used with '--from <FILE>'"),
            ("x", "unexpected argument 'x'"),
        ] {
            let e = parse(line).unwrap_err();
            assert!(e.starts_with("error: ") && e.contains(part), "{line}: {e}");
        }
    }
}
