//! Makes a report of all measurements, saves results under a name, and compares results with saved results.
//!
//! `report` reads the rows (results) of all benches (`target/overhead/*.json`; the rows of a device are in a directory
//! of their own) and Criterion's data. It writes `report.html`, `report.json` for programs, and the main plot
//! `costs.svg` to `target/report`. The report leaves out data that is incomplete or invalid, and has warnings about
//! this data and about missing data. With `--docs`, `report` instead writes the tables of costs in the README and in
//! `docs/costs.md`; with `--originals`, it writes `docs/originals.md`.

mod compare;
mod content;
mod docs;
mod html;
mod input;
mod model;
mod originals;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

use crate::harness::output::{fail, say};
use crate::report::input::Input;
use crate::report::model::Finding;
use crate::row;

pub use self::input::lines as criterion_lines;

/// Runs `report` with this process' command line.
pub fn main() -> ExitCode {
    run(&ReportArgs::parse()).unwrap_or_else(|e| fail(2, e))
}

fn run(args: &ReportArgs) -> Result<ExitCode, String> {
    if let Some(root) = &args.originals {
        say(originals::write_to(root)?);
        return Ok(ExitCode::SUCCESS);
    }
    let target = row::target_dir();
    let measured = args.measured.clone().unwrap_or_else(row::dir);
    let criterion = args.criterion.clone().unwrap_or_else(input::home);
    let out = args.out.clone().unwrap_or_else(|| target.join("report"));
    if let Some(path) = &args.measured
        && !path.is_dir()
    {
        return Err(format!("--measured {}: no directory", path.display()));
    }

    let input = Input::read(&measured, &criterion);
    let against = |name: &String| compare::against(&input, &measured, name, args.max_regression);
    let against = args.compare.as_ref().map(against).transpose()?;
    let passes = against.as_ref().is_none_or(compare::Against::passes);
    let saved = match &args.save {
        // After a failed comparison, nothing is saved: the next comparison would use the worse results as its base, and
        // pass.
        Some(name) if !passes => Some(Ok(format!("not saved as {name}: the comparison failed"))),
        Some(name) => Some(compare::save(&input, &measured, name)),
        None => None,
    };
    if let Some(root) = &args.docs {
        say(docs::write_to(root, &input.here)?);
        return Ok(ExitCode::SUCCESS);
    }
    let plot = content::main_plot(&input.here);
    let mut report = content::report(input);
    if let Some(against) = &against {
        report.sections.insert(0, against.section());
    }
    write(&out, "report.html", &html::page(&report))?;
    write(&out, "report.json", &(row::to_json(&report).map_err(|e| e.to_string())? + "\n"))?;
    match plot {
        Some(plot) => write(&out, "costs.svg", &html::svg(&plot).into_string())?,
        None => remove(&out.join("costs.svg"))?,
    }
    say(summary(&report.findings));
    match report.warnings.len() {
        0 => {}
        1 => say("one warning; see the report"),
        n => say(format_args!("{n} warnings; see the report")),
    }
    say(out.join("report.html").display());
    if let Some(against) = &against {
        say(against);
    }
    if let Some(saved) = saved {
        say(saved?);
    }
    Ok(if passes { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Makes a text with a line for each key number (finding) that was measured.
fn summary(findings: &[Finding]) -> String {
    let line = |finding: &Finding| {
        let beside = finding.beside.iter().map(|beside| format!(", {beside}"));
        Some(format!("{}: {}{}\n", finding.what, finding.value.as_ref()?, beside.collect::<String>()))
    };
    match findings.iter().filter_map(line).collect::<String>() {
        none if none.is_empty() => {
            "Nothing was measured yet that could be summed up: run `cargo bench`.".to_owned()
        }
        lines => lines.trim_end().to_owned(),
    }
}

fn write(dir: &Path, name: &str, text: &str) -> Result<(), String> {
    row::replace(dir, name, text.as_bytes()).map_err(|e| e.to_string())
}

/// Removes a file of an earlier report, if it exists.
fn remove(path: &Path) -> Result<(), String> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(format!("removing {}: {e}", path.display())),
        _ => Ok(()),
    }
}

/// Makes one report of what the benches have measured: report.html and, for programs, report.json
///
/// It reads the files that exist, and names those that are missing or can't be read.
#[derive(Clone, Debug, PartialEq, Parser)]
#[command(name = "report", args_override_self = true, after_help = STATUS)]
pub(crate) struct ReportArgs {
    /// Save these results under this name, in overhead/saved/
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub(crate) save: Option<String>,
    /// Compare the results with those saved under this name; fail if a row has become worse
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub(crate) compare: Option<String>,
    /// The change, in percent, from which a row counts as worse
    // The value is a fraction, such as 0.05 for 5 %.
    #[arg(long, value_name = "P", value_parser = percent, default_value = "5%", requires = "compare")]
    pub(crate) max_regression: f64,
    /// Write the lines of costs in README.md and docs/costs.md of a checkout [default: the checkout from which this
    /// program was built], instead of the report
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = concat!(env!("CARGO_MANIFEST_DIR"), "/.."), conflicts_with_all = ["save", "compare", "out"])]
    pub(crate) docs: Option<PathBuf>,
    /// Write docs/originals.md instead: what other benchmarks published, and how our rows correspond
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = concat!(env!("CARGO_MANIFEST_DIR"), "/.."), conflicts_with_all = ["save", "compare", "out", "docs"])]
    pub(crate) originals: Option<PathBuf>,
    /// Where to write the report (target/report)
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Where the rows are (target/overhead, or $ATRACE_OVERHEAD_DIR)
    #[arg(long, value_name = "DIR")]
    pub(crate) measured: Option<PathBuf>,
    /// Where Criterion's data is (target/criterion, or $CRITERION_HOME)
    #[arg(long, value_name = "DIR")]
    pub(crate) criterion: Option<PathBuf>,
}

const STATUS: &str = "\
Exit status: 0; 1 something has become worse, is missing or could not be judged; 2 usage, or a file that can't be
read or written.";

/// Parses the name of saved results, which becomes the name of a directory.
fn name(name: &str) -> Result<String, String> {
    let safe = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if !name.is_empty() && name.len() <= 100 && !name.starts_with('.') && name.chars().all(safe) {
        Ok(name.to_owned())
    } else {
        Err("a name is made of letters, digits, '-', '_' and inner '.'".to_owned())
    }
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches('%').trim_end().parse::<f64>().ok();
    let number = number.filter(|p| p.is_finite() && (0.0..=1000.0).contains(p));
    number.map(|p| p / 100.0).ok_or_else(|| "a percentage, such as 5%".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<ReportArgs, String> {
        let line = ["report"].into_iter().chain(line.split_whitespace());
        ReportArgs::try_parse_from(line).map_err(|e| e.to_string())
    }

    #[test]
    fn command_lines() {
        let args = parse("").unwrap();
        assert_eq!((args.max_regression, &args.save, &args.compare), (0.05, &None, &None));
        let args = parse("--save new --compare=old-1.2 --max-regression 2.5% --out o").unwrap();
        assert_eq!((args.save.as_deref(), args.compare.as_deref()), (Some("new"), Some("old-1.2")));
        assert_eq!((args.max_regression, args.out), (0.025, Some("o".into())));
        assert_eq!(parse("--compare a --max-regression 10").unwrap().max_regression, 0.1);
        assert!(parse("--help").unwrap_err().contains("those that are missing or can't be read"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, part) in [
            ("--save", "--save <NAME>"),
            ("--save ../x", "'../x' for '--save <NAME>': a name is made of"),
            ("--save .x", "'.x' for '--save <NAME>': a name is made of"),
            ("--save=", "a name is made of"),
            ("--compare a --max-regression=-1", "a percentage, such as 5%"),
            ("--compare a --max-regression NaN", "a percentage, such as 5%"),
            ("--max-regression 5%", "--compare <NAME>"),
            ("begin", "unexpected argument 'begin'"),
        ] {
            let e = parse(line).unwrap_err();
            assert!(e.starts_with("error: ") && e.contains(part), "{line}: {e}");
        }
    }
}
