//! A small web service with a database, and clients that send requests to it.
//!
//! Usage: axum-service [REQUESTS|forever [CONCURRENCY]]
//!
//! The service answers REQUESTS requests (default 7,500), CONCURRENCY of them at a time (default 16), prints how many
//! requests were answered, and ends. With `forever`, it answers requests until it is stopped, and prints a line for
//! every tenth request. With a number of REQUESTS, the request in the middle searches without an index and is slow.
//!
//! The first of these commands makes a trace, which shows which request was slow, and where it waited. The second
//! command measures what tracing costs a request:
//!
//! ```sh
//! atrace run -- axum-service
//! atrace cost --switch --unit lines -- axum-service forever
//! ```

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use atrace_subscriber::AtraceSubscriber;
use axum::extract::{Query, State};
use axum::http::{Request, StatusCode};
use axum::routing::get;
use serde::Deserialize;
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tower_http::trace::TraceLayer;
use tracing::{info, info_span, instrument};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// The number of rows of the table.
const ROWS: i64 = 2000;
/// A service that runs until it is stopped prints a line each time that it has answered this many requests.
const A_LINE: usize = 10;
/// The number of requests for a service that answers requests until it is stopped.
const FOREVER: usize = usize::MAX;

#[derive(Deserialize)]
struct Search {
    word: String,
    /// Whether a search looks for its text in the middle of words. Such a search can't use an index, so it is slow.
    #[serde(default)]
    anywhere: bool,
}

/// The query that counts the words that match the search. It uses an index, so it is fast.
const BY_INDEX: &str = "SELECT count(*) FROM words WHERE word GLOB ?";
/// The query for a slow request. It counts pairs of words: the first word matches the search, and the second word
/// contains the first four characters of the first word at any position.
const ANYWHERE: &str = "SELECT count(*) FROM words AS one, words AS other
                        WHERE one.word GLOB ? AND other.word GLOB '*' || substr(one.word, 1, 4) || '*'";

#[instrument(name = "db.search", skip(pool))]
async fn matches(pool: &SqlitePool, pattern: &str, anywhere: bool) -> Result<i64, sqlx::Error> {
    let query = if anywhere { ANYWHERE } else { BY_INDEX };
    sqlx::query_scalar(query).bind(pattern).fetch_one(pool).await
}

#[instrument(name = "db.count", skip_all)]
async fn total(pool: &SqlitePool) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("SELECT max(id) FROM words").fetch_one(pool).await
}

/// Answers a request with the number of words that match the search, and the number of all words.
async fn search(State(pool): State<SqlitePool>, Query(search): Query<Search>) -> Result<String, StatusCode> {
    let pattern = format!("{}*", search.word);
    let found = tokio::try_join!(matches(&pool, &pattern, search.anywhere), total(&pool));
    let (found, total) = found.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    info!(found, "answered");
    Ok(format!("{found} of {total}\n"))
}

async fn database(directory: &std::path::Path) -> Result<SqlitePool, Error> {
    let options = SqliteConnectOptions::new().filename(directory.join("words")).create_if_missing(true);
    let pool = SqlitePoolOptions::new().max_connections(4).connect_with(options).await?;
    sqlx::query("CREATE TABLE words (id INTEGER PRIMARY KEY, word TEXT COLLATE BINARY)")
        .execute(&pool)
        .await?;
    sqlx::query("CREATE INDEX by_word ON words (word)").execute(&pool).await?;
    let fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
                INSERT INTO words SELECT i, lower(hex(randomblob(8))) FROM n";
    sqlx::query(fill).bind(ROWS).execute(&pool).await?;
    Ok(pool)
}

/// Sends requests on one connection until `next` has reached `requests`. Returns the number of requests that were
/// answered with success.
async fn client(to: SocketAddr, next: Arc<AtomicUsize>, requests: usize) -> Result<usize, Error> {
    let mut stream = TcpStream::connect(to).await?;
    let (mut answer, mut answered) = (vec![0; 4096], 0);
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= requests {
            return Ok(answered);
        }
        let search = if number == requests / 2 {
            "[0-3]&anywhere=true".to_owned()
        } else {
            format!("{:02x}", number % 256)
        };
        let request = format!("GET /search?word={search} HTTP/1.1\r\nhost: here\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        // An answer is small, and its body is one line.
        let mut len = 0;
        while !(answer[..len].ends_with(b"\n") && answer[..len].windows(4).any(|end| end == b"\r\n\r\n")) {
            match stream.read(&mut answer[len..]).await? {
                0 => return Err("the service closed the connection".into()),
                more => len += more,
            }
        }
        answered += usize::from(answer.starts_with(b"HTTP/1.1 200"));
        if requests == FOREVER && number % A_LINE == 0 {
            println!("request {number} answered");
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    tracing::subscriber::set_global_default(AtraceSubscriber::default().with_filter())?;
    let number = |text: String| if text == "forever" { Ok(FOREVER) } else { text.parse::<usize>() };
    let mut arguments = std::env::args().skip(1).map(number);
    let requests = arguments.next().transpose()?.unwrap_or(7500);
    let concurrency = arguments.next().transpose()?.unwrap_or(16);

    let directory = tempfile::tempdir()?;
    let span = |request: &Request<_>| info_span!("request", method = %request.method(), uri = %request.uri());
    let service = axum::Router::new()
        .route("/search", get(search))
        .layer(TraceLayer::new_for_http().make_span_with(span))
        .with_state(database(directory.path()).await?);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async { axum::serve(listener, service).await });

    let next = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> =
        (0..concurrency).map(|_| tokio::spawn(client(address, Arc::clone(&next), requests))).collect();
    let mut answered = 0;
    for client in clients {
        answered += client.await??;
    }
    println!("{answered} of {requests} requests answered");
    Ok(())
}
