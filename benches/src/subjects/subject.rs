//! A kind of subscriber that a process has, whoever made it.

use tracing::Subscriber;

use crate::catalogue::{self, Id, TracingCase, Way, What, Who};

/// One kind of subscriber, in one state of tracing, that can be installed.
#[derive(Clone, Copy)]
pub struct Subject {
    /// The mode of the process that has it.
    pub name: &'static str,
    /// The crate of somebody else's that it is, as in ids.
    pub(super) peer: Option<&'static str>,
    pub(super) kind: &'static str,
    /// Whether tracing is on.
    pub on: bool,
    /// Which way its events go.
    pub way: Way,
    /// Makes it the global default.
    pub install: fn(),
    /// The modes that it is compared to.
    pub compared_to: &'static [&'static str],
}

impl Subject {
    /// Returns the id of the row of a case.
    pub fn id(&self, case: TracingCase) -> Id {
        match (self.peer, catalogue::Subscriber::of_mode(self.name)) {
            (None, Some(own)) => own.id(case),
            (peer, _) => {
                let who = Who::Other(peer.unwrap_or_default().to_owned());
                Id { who, what: What::Tracing(self.kind.to_owned(), case) }
            }
        }
    }

    /// Tells whether it allocates the same in each run. A registry takes memory for more spans now and then.
    pub fn allocates_exactly(&self) -> bool {
        self.peer.is_none() && self.name != "registry" && !self.kind.starts_with("layer")
    }

    /// The same peer set up in another way, under this name.
    pub fn kind(self, name: &'static str, kind: &'static str, install: fn()) -> Self {
        Self { name, kind, install, ..self }
    }
}

/// Makes a subscriber the global default.
///
/// # Panics
///
/// If there is one already.
#[inline]
pub fn install(subscriber: impl Subscriber + Send + Sync) {
    tracing::subscriber::set_global_default(subscriber).expect("no other subscriber was set");
}

/// A peer, in its own default state.
pub fn peer(name: &'static str, crate_name: &'static str, install: fn()) -> Subject {
    let compared_to = &["no_subscriber"];
    Subject { name, peer: Some(crate_name), kind: "", on: false, way: Way::Limit, install, compared_to }
}
