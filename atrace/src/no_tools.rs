//! What the feature `tracefs` adds on a system without tracefs: nothing.

pub mod tracefs {
    //! Buffers of the kernel to trace into: there are none on this system.
}
