//! Work whose cost is known because it can't overlap with itself.
//!
//! Every step needs the result of the one before, so that twelve steps cost the same wherever they
//! stand, and sixty cost five times as much. It says how fast the processor is just now ([`time`]), and the harness is
//! proved with it: what a block of steps costs by itself is what it must be found to add to something else.

use std::time::Instant;

/// Runs a block of twelve steps, each a shift, an exclusive or and a multiplication: some twenty
/// nanoseconds, beginning with `x`.
///
/// It is a call everywhere, so that it is the same code everywhere.
#[inline(never)]
pub fn block(mut x: u64) -> u64 {
    // Without a loop: leaving one costs a mispredicted jump, sometimes.
    macro_rules! steps {
        ($($step:tt)*) => {
            $(
                let _ = $step;
                // There is no shorter way to the end of several of these.
                x = (x ^ (x >> 29)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
            )*
        };
    }
    steps!(0 1 2 3 4 5 6 7 8 9 10 11);
    x
}

/// Runs `n` times as many blocks as `BLOCKS` says, one after the other, and consumes the result.
#[inline(never)]
pub fn run<const BLOCKS: usize>(n: u64) {
    let mut x = n;
    let mut left = n;
    while left > 0 {
        let mut blocks = 0;
        while blocks < BLOCKS {
            x = block(x);
            blocks += 1;
        }
        left -= 1;
    }
    std::hint::black_box(x);
}

/// Returns the nanoseconds of a chain of a hundred blocks, two microseconds or so: the shortest of three, as what interrupts
/// one says nothing of how fast the processor is.
pub fn time() -> f64 {
    let once = || {
        let start = Instant::now();
        run::<100>(1);
        start.elapsed().as_secs_f64() * 1e9
    };
    (0..3).map(|_| once()).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_step_is_left_out() {
        let mut x = 1_u64;
        for _ in 0..12 {
            x = (x ^ (x >> 29)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        }
        assert_eq!(block(1), x);
    }
}
