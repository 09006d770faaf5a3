//! Memory that the kernel maps, and memory files.
//!
//! - [`Region`]: bytes that others may change, of a file or of nobody else;
//! - [`Mapped`]: one value in a mapping of its own;
//! - [`sealed_file`], [`sealed_size`], [`fixed_size`]: files that can't become smaller, so that a mapping of one can't end
//!   this process.

pub use crate::system::file::{fixed_size, sealed_file, sealed_size};
pub use crate::system::{Mapped, Plain, Region, Shared};
