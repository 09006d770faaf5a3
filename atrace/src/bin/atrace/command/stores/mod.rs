//! What switches tracing: the patterns and tags in the property stores of the users.

pub(crate) mod content;
pub(crate) mod errands;
pub(crate) mod pattern;
pub(crate) mod store;
