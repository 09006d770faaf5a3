//! A small service, traced with `tracing`: threads, requests that wait, queues and failures, to be viewed in
//! Perfetto.
//!
//! ```text
//! cargo build -p atrace-subscriber --example service_with_tracing
//! atrace run -- target/debug/examples/service_with_tracing
//! ```
//!
//! These commands make the file `service_with_tracing.pftrace`, which <https://ui.perfetto.dev> opens. The trace shows:
//! on each thread the slices of its work; on tracks `requests` a slice for each request's whole life, and another for
//! the request's time in the queue; the counters `waiting` and `answered`; and instants for unusual events.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use atrace_subscriber::AtraceSubscriber;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tracing::{Instrument as _, debug_span, info, info_span, instrument, warn};

/// The number of clients.
const CLIENTS: i32 = 4;
/// The number of requests that each client sends.
const REQUESTS: i32 = 10;

/// The state that all connections share.
struct Service {
    /// Limits how many requests may be rendered at the same time.
    renderers: Semaphore,
    waiting: AtomicI32,
    answered: AtomicI32,
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    tracing::subscriber::set_global_default(AtraceSubscriber::default().with_filter())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("worker")
        .enable_all()
        .build()?;
    runtime.block_on(async {
        info!("ready");
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let service = Arc::new(Service {
            renderers: Semaphore::new(2),
            waiting: AtomicI32::new(0),
            answered: AtomicI32::new(0),
        });
        let serving = tokio::spawn(serve(listener, Arc::clone(&service)));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| tokio::spawn(async move { ask(TcpStream::connect(address).await?, client).await }))
            .collect();
        for client in clients {
            client.await??;
        }
        serving.abort();
        println!("{} requests answered", service.answered.load(Ordering::Relaxed));
        Ok(())
    })
}

/// A client: it sends one request after the other.
async fn ask(stream: TcpStream, client: i32) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut answer = String::new();
    for request in 0..REQUESTS {
        let question = format!("{}\n", client * REQUESTS + request);
        stream.write_all(question.as_bytes()).await?;
        answer.clear();
        stream.read_line(&mut answer).await?;
    }
    Ok(())
}

async fn serve(listener: TcpListener, service: Arc<Service>) -> std::io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(connection(stream, Arc::clone(&service)));
    }
}

async fn connection(stream: TcpStream, service: Arc<Service>) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while stream.read_line(&mut line).await? > 0 {
        let number = parse(&line);
        // Because of the field `atrace.track`, the span's whole life is shown on a track, in addition to the slices of
        // its polls.
        let request = info_span!("request", atrace.track = "requests", number);
        let answer = answer(number, &service).instrument(request).await;
        stream.write_all(answer.as_bytes()).await?;
        line.clear();
    }
    Ok(())
}

#[instrument(skip_all)]
fn parse(line: &str) -> i32 {
    work(Duration::from_micros(200));
    line.trim().parse().unwrap_or(0)
}

async fn answer(number: i32, service: &Arc<Service>) -> String {
    info!(counter.waiting = service.waiting.fetch_add(1, Ordering::Relaxed) + 1);
    let queued = info_span!("queued", atrace.track = "requests", number);
    let permit = service.renderers.acquire().instrument(queued).await;
    info!(counter.waiting = service.waiting.fetch_sub(1, Ordering::Relaxed) - 1);
    let rendered = tokio::task::spawn_blocking(move || render(number)).await;
    drop(permit);
    info!(counter.answered = service.answered.fetch_add(1, Ordering::Relaxed) + 1);
    match rendered {
        Ok(Some(text)) => text,
        _ => {
            warn!(number, "request failed");
            "failed\n".to_owned()
        }
    }
}

/// Renders an answer, and blocks the thread meanwhile. Fails for every thirteenth number.
#[instrument]
fn render(number: i32) -> Option<String> {
    debug_span!("read").in_scope(|| std::thread::sleep(Duration::from_micros(500)));
    if number % 13 == 12 {
        return None;
    }
    let pages = number % 4 + 1;
    let _draw = debug_span!("draw", pages).entered();
    work(Duration::from_micros(400) * pages.unsigned_abs());
    Some(format!("{number} drawn\n"))
}

/// Keeps a processor busy for `time`.
fn work(time: Duration) {
    let start = std::time::Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}
