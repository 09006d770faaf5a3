//! Mappings and memory files.
//!
//! - [`Region`]: bytes of a file or private memory, which others may change;
//! - [`Mapped`]: one value in a mapping of its own;
//! - [`page_size`]: the smallest unit that the kernel maps;
//! - [`sealed_file`], [`sealed_size`], [`fixed_size`]: files that can't shrink. A mapping of a file that shrinks
//!   would kill the process that uses it;
//! - [`has_memory_files`]: whether the kernel has such files.

pub use crate::system::file::{fixed_size, has_memory_files, may_have_size, sealed_file, sealed_size};
pub use crate::system::{Mapped, Plain, Region, Shared, page_size};
