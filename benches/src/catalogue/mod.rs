//! What exists to be measured.

pub mod published;
