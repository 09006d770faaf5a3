//! The property stores of the users, which switch tracing: their patterns and tags.
//!
//! - `store` finds the stores that a command must reach, does the work on them with the rights of their users, and
//!   checks new patterns;
//! - `content` is the content of a store.

mod content;
mod store;

pub(crate) use self::content::Content;
pub(crate) use self::store::{Follower, Store, Work, all, check_all, left, perform, refuse};
