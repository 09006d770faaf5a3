//! The property stores of the users, which switch tracing: their patterns and tags.
//!
//! - `store` finds the stores that a command must reach;
//! - `privsep` does the work on them, with the rights of their users;
//! - `content` is what a store contains; `pattern` checks new patterns.

mod content;
mod pattern;
mod privsep;
mod store;

pub(crate) use self::content::Content;
pub(crate) use self::pattern::check_all;
pub(crate) use self::privsep::{Work, left, perform_one};
pub(crate) use self::store::{Follower, Store, all, perform, refuse};
