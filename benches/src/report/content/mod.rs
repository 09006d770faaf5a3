//! Makes the content of the report: tables, plots and warnings. Each group of sections has its own file.

mod events;
mod findings;
pub(crate) mod made;
mod rows;

pub(crate) use self::events::main_plot;
pub(crate) use self::findings::{LINES, Line, about_run, cc};
use super::input::{Bench, Input, Machine};
use super::model::{Measured, Report};
use crate::catalogue::{ATRACE, INSTRUCTIONS, SUBSCRIBER};

/// The benches for which the report has special sections. The section about any other bench is that of a workload.
pub(super) const KNOWN: [&str; 3] = [ATRACE, SUBSCRIBER, INSTRUCTIONS];

/// Makes the report.
pub(crate) fn report(input: Input) -> Report {
    let Input { here, devices, problems, .. } = input;
    let mut report = Report {
        title: "What tracing costs".to_owned(),
        about: findings::about(&here),
        findings: findings::findings(&here),
        warnings: findings::warnings(&here),
        ..Report::default()
    };
    for (name, device) in &devices {
        let of = format!("on {name}: ");
        report.warnings.extend(findings::doubts(device).into_iter().map(|warning| of.clone() + &warning));
    }
    report.warnings.extend(problems.into_vec());
    let sections = [
        rows::promised(&here.judged),
        events::wrapper(&here),
        events::perfetto(&here),
        events::subscriber(&here),
        events::kinds(&here),
        events::circumstances(&here),
    ];
    report.sections.extend(sections.into_iter().flatten());
    report.sections.extend(rows::workloads(&here));
    report.sections.extend(rows::originals(&here));
    report.sections.extend(rows::instructions(&here));
    report.sections.extend(rows::criterion(&here));
    report.sections.extend(devices.iter().map(|(name, device)| rows::of_device(name, device)));
    report.sections.push(rows::environments(&here));
    report.sections.push(rows::reading());
    report.sections.extend(rows::everything(&here));
    let measured = |place: Machine| {
        let bench = |(name, bench): (String, Bench)| {
            (name, Measured { environment: bench.environment, rows: bench.rows })
        };
        place.benches.into_iter().map(bench).collect()
    };
    report.measured = devices.into_iter().map(|(name, place)| (name, measured(place))).collect();
    report.measured.insert(String::new(), measured(here));
    report
}
