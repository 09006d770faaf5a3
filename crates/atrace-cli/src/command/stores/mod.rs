//! The settings that switch tracing: the patterns and tags in the property stores of the users.

mod content;
mod errands;
mod pattern;
mod store;

pub(crate) use self::content::Content;
pub(crate) use self::errands::{Work, left, perform_one};
pub(crate) use self::pattern::check_all;
pub(crate) use self::store::{Follower, Store, all, perform, refuse};
