//! Parses the command line of a bench, in the form that `cargo bench` and `cargo test` use.
//!
//! Criterion parses the same command line itself. So options that are only for Criterion are accepted and ignored by
//! this parser.

use crate::catalogue::{Id, Who};
use std::ffi::OsString;

/// The flags of Criterion and libtest that are followed by a value.
const WITH_VALUE: &str = "--baseline --baseline-lenient --color --colour --confidence-level --format \
    --load-baseline --logfile --measurement-time --noise-threshold --nresamples --output-format \
    --plotting-backend --profile-time --sample-size --save-baseline --significance-level --skip \
    --test-threads --warm-up-time -b -s";

/// The parsed command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Args {
    /// Whether to run every case once and measure nothing. As with Criterion, this is the default if the flag
    /// `--bench`, which `cargo bench` passes, is missing. On Android, a bench may be started without cargo, so it
    /// measures unless `--test` is given.
    pub test: bool,
    /// Whether to measure for less time, with less precision.
    pub quick: bool,
    /// Whether to list the cases and run nothing.
    pub list: bool,
    /// Whether to print the help and run nothing.
    pub help: bool,
    /// The filters. If there are filters, a case runs only if its id, or its name in the original benchmark, contains
    /// one of the filters.
    pub filters: Vec<String>,
    /// Whether a filter must be equal to the id of a case, or to its name in the original benchmark, not only be
    /// contained in it.
    pub exact: bool,
    /// The role of this process, if the bench started it as a child process; see [`crate::harness::child`].
    pub mode: Option<String>,
}

/// The text of `--help`.
pub(super) const HELP: &str = "\
usage: cargo bench --bench BENCH -- [OPTIONS] [FILTER]...

Measures the cases whose id, or whose name in the original benchmark, contains one of the filters, or all cases. Leaves
the rows if no case is left out. Flags of Criterion, such as --save-baseline, work where a bench has its cases.

  --quick   take a quarter of the time, with less certain results
  --test    run every case once, check its results, and measure nothing
  --list    name the cases
  --exact   a filter is a whole id
  --help    say this

environment: ATRACE_BENCH_SINK (tracefs, file, null), ATRACE_OVERHEAD_DIR (where rows are left),
  ATRACE_BENCH_ORIGINAL (1: `coroutines` has as many tasks at once as its original)";

impl Args {
    /// Parses the command line of this process.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`parse`](Self::parse).
    pub fn from_env() -> Result<Self, String> {
        Self::parse(std::env::args_os().skip(1))
    }

    /// Parses a command line without the program's name.
    ///
    /// # Errors
    ///
    /// Returns an error if an argument is not UTF-8, or if a flag lacks its value. An unknown flag is treated as a
    /// flag of Criterion without a value.
    pub fn parse<S: Into<OsString>>(args: impl IntoIterator<Item = S>) -> Result<Self, String> {
        Self::parse_for(cfg!(target_os = "android"), args)
    }

    /// Does the same as [`parse`](Self::parse), by the rules for Android or by the rules for other systems.
    fn parse_for<S: Into<OsString>>(
        android: bool,
        args: impl IntoIterator<Item = S>,
    ) -> Result<Self, String> {
        let mut parsed = Self::default();
        let mut bench = false;
        let mut args = args
            .into_iter()
            .map(|arg| arg.into().into_string().map_err(|arg| format!("{} is not UTF-8", arg.display())));
        while let Some(arg) = args.next() {
            let arg = arg?;
            let (flag, inline) = match arg.split_once('=') {
                Some((flag, value)) if flag.starts_with("--") => (flag, Some(value.to_owned())),
                _ => (&arg[..], None),
            };
            let mut value = || match inline.clone() {
                Some(value) => Ok(value),
                None => args.next().unwrap_or_else(|| Err(format!("{flag} needs a value"))),
            };
            match flag {
                "--bench" => bench = true,
                "--test" => parsed.test = true,
                "--quick" => parsed.quick = true,
                "--list" => parsed.list = true,
                "--help" | "-h" => parsed.help = true,
                "--exact" => parsed.exact = true,
                "--mode" => parsed.mode = Some(value()?),
                _ if WITH_VALUE.split(' ').any(|name| name == flag) => drop(value()?),
                _ if flag.starts_with('-') => {}
                _ => parsed.filters.push(arg),
            }
        }
        parsed.test |= !bench && !android;
        Ok(parsed)
    }

    /// Returns the output of a bench that measures nothing and only prints a text: for `--help` the help text,
    /// otherwise the text that `all` returns. Returns `None` for `--test`, for `--list`, and if there are filters.
    pub fn answer(&self, all: impl FnOnce() -> String) -> Option<String> {
        if self.help {
            return Some(HELP.to_owned());
        }
        (!self.test && !self.list && self.filters.is_empty()).then(all)
    }

    /// Returns whether a filter selects the case with the id `id`. A filter can name the id, or the name that the
    /// original benchmark gives to the C++ case, such as `BM_TracingOffAtraceEnd`. The name of a C++ case also selects
    /// the same operation in the other implementations.
    pub fn selects(&self, id: &str) -> bool {
        let names = [id.to_owned(), Id::of(id).with_who(Who::Cc).label()];
        let hit =
            |f: &String| names.iter().any(|name| if self.exact { f == name } else { name.contains(&f[..]) });
        self.filters.is_empty() || self.filters.iter().any(hit)
    }

    /// Returns whether a filter names a part of the case `id`, such as `<id>/creation`.
    pub fn selects_a_part_of(&self, id: &str) -> bool {
        let is_part = |filter: &String| filter.strip_prefix(id).is_some_and(|part| part.starts_with('/'));
        self.filters.iter().any(is_part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Args {
        Args::parse(line.split_whitespace()).unwrap()
    }

    #[test]
    fn what_cargo_passes() {
        let parse = |line: &str| Args::parse_for(false, line.split_whitespace()).unwrap();
        assert_eq!(parse("--bench"), Args::default());
        assert!(parse("").test);
        assert!(parse("--bench --test").test);
        let quick = parse("--quick --bench");
        assert!(quick.quick && !quick.test);
        assert!(parse("--list --format terse").list);
        assert!(parse("--bench --help").help && parse("-h").help && !parse("--bench").help);
        assert!(parse("--list --format terse").filters.is_empty());
    }

    #[test]
    fn a_bench_that_runs_nothing_says_what_it_can() {
        let says = |line: &str| parse(line).answer(|| "all".to_owned());
        assert_eq!(says("--bench --help").as_deref(), Some(HELP));
        assert_eq!(says("--bench").as_deref(), Some("all"));
        assert_eq!(["", "--bench --list", "--bench on_begin"].map(says), [None, None, None]);
    }

    #[test]
    fn a_filter_may_name_a_part_of_a_case() {
        let selects = |line: &str| {
            let args = parse(line);
            ["cc/gcc/thread/fib_25", "cc/gcc/thread/fib_2"].map(|id| args.selects_a_part_of(id))
        };
        assert_eq!(selects("--bench cc/gcc/thread/fib_25/creation"), [true, false]);
        assert_eq!(selects("--bench cc/gcc/thread/fib_2/creation"), [false, true]);
        assert_eq!(selects("--bench cc/gcc/thread/fib_25"), [false, false]);
        assert_eq!(selects("--bench"), [false, false]);
    }

    #[test]
    fn on_android_only_a_test_is_a_test() {
        let parse = |line: &str| Args::parse_for(true, line.split_whitespace()).unwrap();
        assert_eq!(parse(""), Args::default());
        assert_eq!(parse("--bench"), Args::default());
        assert!(parse("--test").test && parse("--bench --test").test);
    }

    #[test]
    fn criterions_flags_are_let_through() {
        let args = parse("--save-baseline main on_begin --sample-size=20 --noplot -n -b old off --bench");
        assert_eq!(args.filters, ["on_begin", "off"]);
        assert!(!args.test);
        assert_eq!(Args::parse(["--sample-size"]).unwrap_err().to_string(), "--sample-size needs a value");
    }

    #[test]
    fn filters() {
        let args = parse("--bench on_begin");
        assert!(args.selects("rust/tracing_on_begin/10") && !args.selects("rust/tracing_off_begin/10"));
        assert!(parse("--bench").selects("x"));
        let original = parse("--bench BM_TracingOffAtraceEnd");
        assert!(original.selects("cc/tracing_off_end") && original.selects("rust/tracing_off_end"));
        assert!(!original.selects("rust/tracing_on_end") && !original.selects("rust/sum/none"));
        let exact = parse("--bench --exact a/b");
        assert!(exact.selects("a/b") && !exact.selects("a/b/10"));
    }

    #[test]
    fn modes() {
        assert_eq!(parse("--mode on --bench").mode.as_deref(), Some("on"));
        assert_eq!(parse("--mode=off --bench").mode.as_deref(), Some("off"));
        assert!(Args::parse(["--mode"]).is_err());
    }
}
