//! Makes one report of everything that was measured, keeps results under a name, and compares with those.
//!
//! `report` reads the rows of all benches (`target/overhead/*.json`, of devices in directories of their own) and
//! Criterion's data, and writes `report.md`, `report.html` and `report.json` to `target/report`, with the main plot
//! as a picture of its own (`costs.svg`). What is missing, cut short or makes no sense is named in the report and
//! left out of it. `--docs` writes `docs/costs.md` and the lines of the README instead.
//!
//! # When something has become worse
//!
//! `--save NAME` keeps the rows; `--compare NAME --max-regression 5%` holds those of today against them and fails
//! where one is worse *for sure*, which is never said of a difference that the intervals explain:
//!
//! - What is compared is a row's **ratios** (`vs`, `vs_process`), since what the machine did in between is in both
//!   halves of a ratio. A ratio has become worse when the lower bound of today's, divided by the upper bound of
//!   the saved one, is above 1 + the maximum.
//! - A row that is compared to nothing, and is not itself what others are compared to (`limit/`, `cc/`, peers), is
//!   compared by its **time**, each divided by how much faster or slower the machine has become: the median, over
//!   the bench's `limit/` and `cc/` rows, of today's time by the saved one. The bounds are used in the same way.
//! - What tracing adds to a **workload** (`above`) has become worse when the lower bound of today's, divided by how
//!   the machine has changed, is above the upper bound of the saved one by more than the maximum of that, 2 ns and
//!   1 % of the workload. The workload's own time is nobody's fault here.
//! - Of ratios and times the median must have grown by more than half a nanosecond of today's time: what is below is a
//!   matter of where the linker put the code.
//! - **Instructions** have no intervals and no such floor: they have become worse when they are more than
//!   1 + the maximum times the saved ones.
//! - **Allocations** may not grow at all (by more than a hundredth of one per operation).
//! - A row that is **missing** today, and was not noisy then, fails.
//! - That a row is **noisy**, today or then, makes its time uncertain, not its ratios: where it would be judged by its
//!   time, it is named instead. When nothing at all could be judged, that fails.
//! - The rows of one device are compared with those of the same device.
//!
//! An interval is over the rounds of one process: what differs from process to process (how the linker and the
//! loader placed things; the return guard of `atrace-sys`) it does not know of. So a failure is worth a second run
//! of the bench. With `--save` too, a failed comparison saves nothing.

mod args;
mod compare;
mod content;
mod criterion;
mod docs;
mod html;
mod input;
mod markdown;
mod model;
mod plot;
mod reading;

use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser as _;

use self::args::ReportArgs;
use self::input::Input;
use crate::harness::terminal::{fail, say};
use crate::row;

/// Runs `report` with this process' command line.
#[must_use]
pub fn main() -> ExitCode {
    run(&ReportArgs::parse()).unwrap_or_else(|e| fail(2, e))
}

fn run(args: &ReportArgs) -> Result<ExitCode, String> {
    let target = row::target_dir();
    let measured = args.measured.clone().unwrap_or_else(row::dir);
    let criterion = args.criterion.clone();
    let criterion =
        criterion.or_else(|| row::env_path("CRITERION_HOME")).unwrap_or_else(|| target.join("criterion"));
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
        say(docs::write_to(root, input)?);
        return Ok(ExitCode::SUCCESS);
    }
    let plot = content::main_plot(&input.here);
    let mut report = content::report(input);
    if let Some(against) = &against {
        report.sections.insert(0, against.section());
    }
    write(&out, "report.md", &markdown::text(&report))?;
    write(&out, "report.html", &html::page(&report))?;
    write(&out, "report.json", &(serde_json::to_string(&report).map_err(|e| e.to_string())? + "\n"))?;
    match plot {
        Some(plot) => write(&out, "costs.svg", &plot::file(&plot, html::PLOT_STYLE))?,
        None => remove(&out.join("costs.svg"))?,
    }
    say(&report.summary);
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
