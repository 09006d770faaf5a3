//! A small service that is traced, to be viewed in Perfetto: threads, requests that wait, queues and
//! failures.
//!
//! ```text
//! cargo build -p atrace --example service
//! atrace run -- target/debug/examples/service
//! ```
//!
//! `atrace run` makes the file `service.pftrace`, which <https://ui.perfetto.dev> opens. The trace shows: on each
//! thread the slices of its work (`parse`, `render 7`); on a track `requests` a slice for each request's whole life,
//! most of which is waiting; the counters `waiting` and `answered`; and instants for unusual events.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use atrace::{
    AtraceTag, atrace_async_for_track_begin_args, atrace_async_for_track_end, atrace_instant,
    atrace_instant_args, atrace_int, begin_scoped_event, begin_scoped_event_args,
};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

const TAG: AtraceTag = AtraceTag::App;

/// The number of clients. Each client sends ten requests.
const CLIENTS: i32 = 4;
const REQUESTS: i32 = 10;

/// The state that all connections share.
struct Service {
    /// Limits how many requests may be rendered at the same time.
    renderers: Semaphore,
    waiting: AtomicI32,
    answered: AtomicI32,
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("worker")
        .enable_all()
        .build()?;
    runtime.block_on(async {
        atrace_instant(TAG, "ready");
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
        // An await may change the thread, so a slice that spans an await is async. The number of the request identifies
        // the slice.
        atrace_async_for_track_begin_args(TAG, "requests", format_args!("request {number}"), number, &[]);
        let answer = answer(number, &service).await;
        atrace_async_for_track_end(TAG, "requests", number);
        stream.write_all(answer.as_bytes()).await?;
        line.clear();
    }
    Ok(())
}

fn parse(line: &str) -> i32 {
    let _parse = begin_scoped_event(TAG, "parse");
    work(Duration::from_micros(200));
    line.trim().parse().unwrap_or(0)
}

async fn answer(number: i32, service: &Arc<Service>) -> String {
    atrace_int(TAG, "waiting", service.waiting.fetch_add(1, Ordering::Relaxed) + 1);
    let permit = service.renderers.acquire().await;
    atrace_int(TAG, "waiting", service.waiting.fetch_sub(1, Ordering::Relaxed) - 1);
    let rendered = tokio::task::spawn_blocking(move || render(number)).await;
    drop(permit);
    atrace_int(TAG, "answered", service.answered.fetch_add(1, Ordering::Relaxed) + 1);
    match rendered {
        Ok(Some(text)) => text,
        // A slice shows how long something took, an instant that something happened.
        _ => {
            atrace_instant_args(TAG, format_args!("request {number} failed"), &[]);
            "failed\n".to_owned()
        }
    }
}

/// Renders an answer, which blocks the thread. Every thirteenth number fails.
fn render(number: i32) -> Option<String> {
    let _render = begin_scoped_event_args(TAG, format_args!("render {number}"), &[]);
    {
        let _read = begin_scoped_event(TAG, "read");
        std::thread::sleep(Duration::from_micros(500));
    }
    if number % 13 == 12 {
        return None;
    }
    let _draw = begin_scoped_event(TAG, "draw");
    work(Duration::from_millis(1));
    Some(format!("{number} drawn\n"))
}

/// Keeps a processor busy for `time`.
fn work(time: Duration) {
    let start = std::time::Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}
