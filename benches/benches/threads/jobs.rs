//! The work of the threads and tasks that operations start. A thread and a task do the same work, but a thread blocks
//! when the work has to wait, and a task returns and is polled again.

use std::future::Future;
use std::hint::black_box;
use std::net::SocketAddr;

use atrace_benches::measure::workload::Wrong;
use p256::ecdsa::signature::{Signer as _, Verifier as _};
use p256::ecdsa::{Signature, SigningKey, VerifyingKey};
use p256::elliptic_curve::Generate as _;
use p256::elliptic_curve::sec1::ToSec1Point as _;
use p256::{PublicKey, SecretKey};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tracing::{Span, info, info_span};

use atrace_benches::subjects::http::{self, Exchange};

pub(crate) trait Work: Copy + Send + Sync + 'static {
    type Output: Send + 'static;

    /// Does the work in a thread, which may block.
    fn block(self, number: u64) -> Result<Self::Output, Wrong>;

    /// Does the work in a task. The default implementation is for work that never waits: it calls
    /// [`block`](Self::block).
    fn poll(self, number: u64) -> impl Future<Output = Result<Self::Output, Wrong>> + Send + 'static {
        async move { self.block(number) }
    }

    /// Makes the span around the work.
    fn span(number: u64) -> Span;

    /// Writes the event that marks the end of the work.
    fn event();

    /// Checks a result of the work. `last` is the previous result of the same client (a thread that runs operations one
    /// after the other).
    fn check(output: &Self::Output, last: Option<&Self::Output>) -> Result<(), Wrong>;

    /// Checks a result of the work more thoroughly than [`check`](Self::check) does.
    fn check_well(_: &Self::Output) -> Result<(), Wrong> {
        Ok(())
    }
}

/// The work of making a P-256 key pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyPairs;

pub(crate) struct KeyPair {
    secret: SecretKey,
    public: PublicKey,
}

impl Work for KeyPairs {
    type Output = KeyPair;

    fn block(self, _: u64) -> Result<KeyPair, Wrong> {
        let secret = SecretKey::try_generate().map_err(|e| format!("no random numbers: {e}"))?;
        let public = black_box(&secret).public_key();
        Ok(KeyPair { secret, public })
    }

    fn span(number: u64) -> Span {
        info_span!("key pair", number)
    }

    fn event() {
        info!("generated");
    }

    fn check(output: &KeyPair, last: Option<&KeyPair>) -> Result<(), Wrong> {
        if last.is_some_and(|last| last.public == output.public) {
            return Err("the same key twice".to_owned());
        }
        // Parsing the key checks that its coordinates satisfy the equation of the curve.
        match PublicKey::from_sec1_bytes(black_box(output.public.to_sec1_point(false).as_bytes())) {
            Ok(key) if key == output.public => Ok(()),
            Ok(_) => Err("a public key is read as a different key".to_owned()),
            Err(e) => Err(format!("a public key is not on the curve: {e}")),
        }
    }

    fn check_well(output: &KeyPair) -> Result<(), Wrong> {
        const MESSAGE: &[u8] = b"signed by the secret key, verified by the public one";
        let signature: Signature = SigningKey::from(&output.secret).sign(MESSAGE);
        let verified = VerifyingKey::from(&output.public).verify(MESSAGE, &signature);
        verified.map_err(|e| format!("the two keys are no pair: {e}"))
    }
}

/// The work of sending a request to the HTTP server and checking the answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requests {
    pub(crate) address: SocketAddr,
    /// How long the server waits before it answers, in milliseconds.
    pub(crate) delay: u32,
}

impl Requests {
    async fn get(self, number: u64) -> std::io::Result<()> {
        let mut exchange = Exchange::new(self.delay, number);
        let mut stream = tokio::net::TcpStream::connect(self.address).await?;
        http::reset(&stream)?;
        stream.write_all(exchange.question()).await?;
        loop {
            let read = stream.read(exchange.room()).await?;
            if exchange.received(read)? {
                return Ok(());
            }
        }
    }

    fn wrong(number: u64) -> impl Fn(std::io::Error) -> Wrong {
        move |e| format!("request {number}: {e}")
    }
}

impl Work for Requests {
    /// The number in the answer.
    type Output = u64;

    fn block(self, number: u64) -> Result<u64, Wrong> {
        http::get(self.address, self.delay, number).map_err(Self::wrong(number))?;
        Ok(number)
    }

    async fn poll(self, number: u64) -> Result<u64, Wrong> {
        self.get(number).await.map_err(Self::wrong(number))?;
        Ok(number)
    }

    fn span(number: u64) -> Span {
        info_span!("request", number)
    }

    fn event() {
        info!("answered");
    }

    fn check(output: &u64, last: Option<&u64>) -> Result<(), Wrong> {
        // The content of the answer was already checked when the answer arrived.
        if last.is_some_and(|last| last >= output) {
            Err(format!("{output} was answered late"))
        } else {
            Ok(())
        }
    }
}
