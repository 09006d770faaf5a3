//! Prints what a program is doing: a tree of its live spans, with the source location where each span was created.
//!
//! ```sh
//! RUSTFLAGS="-C force-frame-pointers=yes" cargo run -p atrace-subscriber --example live --features live
//! ```
//!
//! The program serves three requests. The first one holds a resource and never releases it, so the two others wait for
//! it. A second later the program prints the tree. Without the option for frame pointers the result is the same, but
//! each backtrace takes some microseconds.

use std::sync::Arc;
use std::time::Duration;

use atrace_subscriber::live::{self, LiveLayer, Walk};
use tokio::sync::Mutex;
use tracing::{Instrument as _, info_span, instrument};
use tracing_subscriber::prelude::*;

type Database = Arc<Mutex<Vec<u32>>>;

#[instrument(skip(database))]
async fn transaction(database: Database, request: u32) {
    let mut rows = database.lock().instrument(info_span!("lock")).await;
    rows.push(request);
    if request == 1 {
        // This request holds the lock while it waits for a reply that never comes.
        reply().await;
    }
}

#[instrument]
async fn reply() {
    std::future::pending().await
}

async fn serve(database: Database) {
    for id in 1..=3 {
        tokio::spawn(transaction(Arc::clone(&database), id).instrument(info_span!("request", id)));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    std::future::pending().await
}

#[tokio::main]
async fn main() {
    let live = LiveLayer::default().with_backtraces(64).with_sanitised(true);
    println!("backtraces by {:?}", Walk::default());
    tracing_subscriber::registry().with(live).init();

    let served = serve(Database::default()).instrument(info_span!("serve"));
    if tokio::time::timeout(Duration::from_secs(1), served).await.is_err() {
        println!("nothing happens any more");
    }
    // By now the server's future has been dropped, but the tasks of its requests still exist.
    print!("{}", live::dump());
}
