//! The work of the server programs `size_…`: threads, with the spans and events of a program that uses `tracing`.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use tracing::{debug, error, info, info_span, instrument, trace, warn};

/// Answers requests and prints how long this took. The command line may name a file with a line `requests=NUMBER`.
/// Without this line, the number of requests is 100.
pub(crate) fn main() -> std::io::Result<()> {
    let settings = match std::env::args_os().nth(1) {
        Some(path) => std::fs::read_to_string(path)?,
        None => String::new(),
    };
    let settings: HashMap<_, _> = settings.lines().filter_map(|line| line.split_once('=')).collect();
    let requests = settings.get("requests").and_then(|number| number.parse().ok()).unwrap_or(100);
    let start = Instant::now();
    let length = serve(requests);
    println!("{length} bytes in {:.3} ms", start.elapsed().as_secs_f64() * 1e3);
    Ok(())
}

/// Answers `requests` requests, and returns the number of bytes in the answers.
fn serve(requests: u32) -> usize {
    let workers: Vec<_> = (0..2)
        .map(|worker| {
            std::thread::spawn(move || {
                let _span = info_span!("worker", worker).entered();
                let mut length = 0;
                for number in (worker..requests).step_by(2) {
                    let answer = answer(number);
                    debug!(number, length = answer.len(), "answered");
                    length += answer.len();
                }
                length
            })
        })
        .collect();
    let mut length = 0;
    for worker in workers {
        match worker.join() {
            Ok(answered) => length += answered,
            Err(_) => error!("a worker panicked"),
        }
    }
    info!(requests, length, "all answered");
    length
}

#[instrument(level = "info")]
fn answer(number: u32) -> String {
    let mut words = BTreeMap::new();
    for at in 0..number {
        *words.entry(at % 7).or_insert(0) += at;
    }
    let span = info_span!("render", words = words.len(), sum = tracing::field::Empty);
    let text = span.in_scope(|| format!("{words:?}"));
    span.record("sum", words.values().sum::<u32>());
    trace!(text);
    if text.len() > 60 {
        warn!(length = text.len(), "long");
    }
    text
}
