//! The property stores of the users, and the patterns and tags that they enable.
//!
//! - `store` finds the stores that a command must change, changes them with the rights of their users, and checks
//!   new patterns;
//! - `content` has the type for a store's content.

mod content;
mod store;

pub(crate) use self::content::Content;
pub(crate) use self::store::{ProcessData, Store, Work, all, check_all, left, perform, refuse};
