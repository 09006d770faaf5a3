//! Measures the cases of a bench with Criterion. Criterion's flags, such as `--save-baseline` and `--baseline`, work as
//! in any bench that uses Criterion.

use std::time::Duration;

use atrace_benches::harness::args::Args;
use criterion::Criterion;

/// Returns whether Criterion can parse this command line, which may have at most one filter. If not, prints that
/// Criterion does not run.
pub(crate) fn can_run(args: &Args) -> bool {
    let can_run = args.filters.len() <= 1;
    if !can_run {
        println!("Criterion takes one filter, so it does not run: start the bench with one filter for it");
    }
    can_run
}

/// A run of Criterion, which measures the selected cases one after the other.
pub(crate) struct Cases<'a> {
    criterion: Criterion,
    args: &'a Args,
    /// The names of the measured cases.
    pub(crate) names: Vec<String>,
}

impl<'a> Cases<'a> {
    /// Prepares Criterion with the flags of this process' command line.
    pub(crate) fn new(args: &'a Args) -> Self {
        let criterion = Criterion::default()
            .warm_up_time(Duration::from_millis(100))
            .measurement_time(Duration::from_millis(300))
            .sample_size(40)
            .without_plots()
            .configure_from_args()
            // Criterion itself gets no filter. `case` applies the filters, to the id as well as to the name of a case.
            .with_filter("");
        Self { criterion, args, names: Vec::new() }
    }

    /// Measures a case if a filter selects its id or its name, or if there are no filters. `run(n)` runs the operation
    /// `n` times, and returns the duration.
    pub(crate) fn case(&mut self, id: &str, name: &str, mut run: impl FnMut(u64) -> Duration) {
        if self.args.selects(id) || self.args.selects(name) {
            self.criterion.bench_function(name, |bencher| bencher.iter_custom(&mut run));
            self.names.push(name.to_owned());
        }
    }

    /// Ends the run of Criterion, and returns the names of the measured cases.
    pub(crate) fn end(self) -> Vec<String> {
        self.criterion.final_summary();
        self.names
    }
}
