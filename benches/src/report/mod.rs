//! Makes one report of everything that was measured, keeps results under a name, and compares with those.
//!
//! `report` reads the rows of all benches (`target/overhead/*.json`, of devices in directories of their own) and
//! Criterion's data, and writes `report.html` and, for programs, `report.json` to `target/report`, with the main plot
//! as a picture of its own (`costs.svg`). What is missing, cut short or makes no sense is named in the report and
//! left out of it. `--docs` writes the lines of costs in the README and in
//! `docs/costs.md` instead.

mod args;
mod compare;
mod content;
mod criterion;
mod docs;
mod html;
mod input;
mod model;
mod plot;
mod reading;

use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser as _;

use self::args::ReportArgs;
pub use self::criterion::lines as criterion_lines;
use self::input::Input;
use self::model::Finding;
use crate::harness::terminal::{fail, say};
use crate::row;

/// Runs `report` with this process' command line.
pub fn main() -> ExitCode {
    run(&ReportArgs::parse()).unwrap_or_else(|e| fail(2, e))
}

fn run(args: &ReportArgs) -> Result<ExitCode, String> {
    let target = row::target_dir();
    let measured = args.measured.clone().unwrap_or_else(row::dir);
    let criterion = args.criterion.clone().unwrap_or_else(criterion::home);
    let out = args.out.clone().unwrap_or_else(|| target.join("report"));
    if let Some(path) = &args.measured
        && !path.is_dir()
    {
        return Err(format!("--measured {}: no directory", path.display()));
    }

    let input = Input::read(&measured, &criterion);
    let against = match &args.compare {
        Some(name) => Some(compare::against(&input, &measured, name, args.max_regression)?),
        None => None,
    };
    let passes = against.as_ref().is_none_or(compare::Against::passes);
    let saved = match &args.save {
        // Else the next comparison would find nothing wrong.
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
    write(&out, "report.json", &(serde_json::to_string(&report).map_err(|e| e.to_string())? + "\n"))?;
    match plot {
        Some(plot) => {
            let style = Some(html::PLOT_STYLE);
            write(&out, "costs.svg", &plot::svg(&plot, style).into_string())?;
        }
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

/// The numbers that matter most, a line each.
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

/// Removes what an earlier report left.
fn remove(path: &Path) -> Result<(), String> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(format!("removing {}: {e}", path.display())),
        _ => Ok(()),
    }
}
