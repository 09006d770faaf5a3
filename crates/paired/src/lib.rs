//! Medians and their confidence intervals, for comparisons on a shared machine.
//!
//! On a shared machine, measured times have outliers in one direction and no known distribution, so this crate assumes
//! no distribution. The bounds of a median's interval are two of the samples. Each sample is below the true median with
//! a probability of one half, so the number of samples below the true median is binomially distributed. The bounds are
//! chosen so that the true median is outside of them with a probability of at most 5 %.

mod groups;
mod interval;
pub mod looks;
pub mod ranks;
pub mod sample;
pub mod simulated;
pub mod slices;

pub use groups::Groups;
pub use interval::{CONFIDENCE, Interval, NOISY_NS, NOISY_RATIO, ratio};
