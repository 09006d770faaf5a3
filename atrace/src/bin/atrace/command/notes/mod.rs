//! What a running command writes down for the one that finds it killed.

pub(crate) mod journal;
pub(crate) mod ledger;
