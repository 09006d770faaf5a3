//! Mappings, and *memory files*: files without a name that exist only in memory (`memfd_create`).
//!
//! - [`Region`]: mapped bytes of a file, or anonymous memory. Another thread or process may change the bytes at any
//!   time;
//! - [`Mapped`]: a value of one type in a mapping of its own;
//! - [`page_size`]: the smallest unit that the kernel maps;
//! - [`sealed_file`], [`sealed_size`], [`fixed_size`]: files that no process can shrink. If a file shrinks, a process
//!   that uses a mapped page behind the new end is killed;
//! - [`has_memory_files`]: whether the kernel has memory files and seals.

pub use crate::system::file::{fixed_size, has_memory_files, may_have_size, sealed_file, sealed_size};
pub use crate::system::{Mapped, Plain, Region, Shared, page_size};
