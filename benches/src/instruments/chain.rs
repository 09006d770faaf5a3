//! The chain: a sequence of instructions, each of which needs the result of the previous instruction. The cost of the
//! chain is known, because its instructions can't overlap.
//!
//! At a given speed of the processor, twelve steps of the chain always take the same time, and sixty steps take five
//! times as long. [`time`] uses the chain to measure the current speed of the processor. Tests add a block of steps to
//! a measured operation, and check that the benches find this extra cost.

use std::time::Instant;

/// Runs a block of twelve steps, beginning with the value `x`, and returns the result. The block takes about twenty
/// nanoseconds. A step is a shift, an exclusive or and a multiplication.
///
/// The function is never inlined, so that every caller runs the same code.
#[inline(never)]
pub fn block(mut x: u64) -> u64 {
    // The steps are not in a loop, because the exit of a loop may cost a mispredicted jump.
    macro_rules! steps {
        ($($step:tt)*) => {
            $(
                let _ = $step;
                // The compiler cannot shorten a sequence of these steps.
                x = (x ^ (x >> 29)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
            )*
        };
    }
    steps!(0 1 2 3 4 5 6 7 8 9 10 11);
    x
}

/// Runs `n` × `BLOCKS` blocks one after the other. Each block begins with the result of the previous block.
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

/// The number of blocks of the chain that measures the processor's speed. The clock of an AMD processor counts in steps
/// of 10 ns; such a step is 0.2 % of the time of this chain.
pub const BLOCKS: usize = 300;

/// Returns how long a chain of [`BLOCKS`] blocks takes, in nanoseconds (about five thousand). The chain runs three
/// times. The longest run is ignored, because an interrupted run does not show the speed of the processor. The result
/// is the mean of the other two runs: the shortest run alone would more often be rounded down than up to a step of the
/// clock.
pub fn time() -> f64 {
    let once = || {
        let start = Instant::now();
        run::<BLOCKS>(1);
        start.elapsed().as_secs_f64() * 1e9
    };
    let mut three = [once(), once(), once()];
    three.sort_by(f64::total_cmp);
    f64::midpoint(three[0], three[1])
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
