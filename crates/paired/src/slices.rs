//! The lengths of *slices*: the periods in which tracing stays on or off while the work of a service is counted.
//!
//! The service's units of work are counted at both ends of a slice, so a unit that is in progress at an end counts as a
//! whole unit or not at all. If units are regular and all slices have the same length, this error is the same in most
//! slices. For example, each slice of 1 s counts one unit, whether a unit takes 0.95 s or 1 s, so even many slices do
//! not show the difference. Therefore the length of each slice is random (*dither*). The error then is as likely to
//! make a unit seem longer as to make it seem shorter, and [`ranks`](crate::ranks) requires no more.
//!
//! The count may grow in steps of many units, for example if the units are lines that the service writes from a buffer.
//! Then the error is up to one step. So a slice is at least as long as [`STEPS`] steps take at the beginning of the
//! measurement.
//!
//! The steps may become slower later, for example if a service has printed lines while it started. It would be wrong to
//! lengthen a slice until the count grows: such a slice would often end right after a step, which hides a part of a
//! difference. So after a slice in which the count did not grow, all later slices are twice as long, and the earlier
//! pairs are dropped.

use std::time::Duration;

use fastrand::Rng;

/// How often the count grows in the shortest slice, if the steps take as long as at the beginning of the measurement.
pub const STEPS: u32 = 10;

/// Returns a random length for a slice: at least `shortest`, and less than twice `shortest`.
pub fn length(shortest: Duration, random: &mut Rng) -> Duration {
    shortest.mul_f64(1.0 + random.f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::looks::CONFIDENCE;
    use crate::ranks;

    /// A simulated service that works without a pause and counts the units of its work, such as lines of its output.
    /// Each unit takes the same time.
    struct Service {
        /// The seconds of a unit, with tracing off and on.
        units: [f64; 2],
        /// The number of units by which the count grows at once.
        step: f64,
        done: f64,
    }

    impl Service {
        fn run(&mut self, is_on: bool, seconds: f64) {
            self.done += seconds / self.units[usize::from(is_on)];
        }

        fn count(&self) -> f64 {
            (self.done / self.step).floor() * self.step
        }

        /// Returns the processor time per unit in a slice. If the count does not grow in the slice, lengthens the slice
        /// if `lengthens` is true, otherwise returns `None`.
        fn slice(&mut self, is_on: bool, length: Duration, lengthens: bool) -> Option<f64> {
            self.run(is_on, 0.05);
            let (begin, mut used) = (self.count(), 0.0);
            while self.count() <= begin {
                if used > 0.0 && !lengthens {
                    return None;
                }
                self.run(is_on, length.as_secs_f64());
                used += length.as_secs_f64();
            }
            Some(used / (self.count() - begin))
        }
    }

    /// For each simulated service, the seconds of a unit with tracing off and on, and the number of units by which the
    /// count grows at once. The unit of the last service is a line of its output, of which it writes a hundred at once.
    const SERVICES: &[([f64; 2], f64)] = &[
        ([0.95, 1.0], 1.0),
        ([0.48, 0.5], 1.0),
        ([0.32, 0.33], 1.0),
        ([0.9, 1.1], 1.0),
        ([0.1, 0.1005], 1.0),
        ([0.02, 0.0202], 1.0),
        ([0.0095, 0.01], 100.0),
    ];
    /// Services whose count grows less than once a second.
    const SLOW: &[([f64; 2], f64)] = &[
        ([3.0, 3.3], 1.0),
        ([3.3, 3.0], 1.0),
        ([2.0, 2.2], 1.0),
        ([2.5, 2.7], 1.0),
        ([1.2, 1.3], 1.0),
        ([5.0, 5.5], 1.0),
        ([0.03, 0.033], 100.0),
    ];

    /// Four measurements of so many pairs that the interval is narrow, although the count grows only a few times in a
    /// slice.
    const MANY: [usize; 4] = [4000; 4];

    /// Simulates measurements of regular services: one measurement of each service for each number of pairs. `length`
    /// returns the length of a slice. Its arguments are the shortest length (at first a second), the time in which the
    /// count grows once, and a random generator. Returns how many intervals miss the true difference, and the number of
    /// intervals.
    fn judge(
        services: &[([f64; 2], f64)],
        pairs: &[usize],
        lengthens: bool,
        mut length: impl FnMut(Duration, f64, &mut Rng) -> Duration,
    ) -> [usize; 2] {
        let (mut random, mut counted) = (Rng::with_seed(11), [0; 2]);
        for &(units, step) in services {
            for &number in pairs {
                let mut service = Service { units, step, done: random.f64() * step };
                let (mut pairs, mut shortest) = (Vec::new(), Duration::from_secs(1));
                while pairs.len() < number {
                    let is_on_first = random.bool();
                    let both = [is_on_first, !is_on_first].map(|is_on| {
                        let length = length(shortest, units[0] * step, &mut random);
                        service.slice(is_on, length, lengthens)
                    });
                    let [Some(one), Some(other)] = both else {
                        shortest *= 2;
                        pairs.clear();
                        continue;
                    };
                    let [off, on] = if is_on_first { [other, one] } else { [one, other] };
                    pairs.push((on / off).ln());
                }
                let found = ranks::interval(&pairs, &[], CONFIDENCE).unwrap();
                counted[0] += usize::from(!(found.low..=found.high).contains(&(units[1] / units[0]).ln()));
                counted[1] += 1;
            }
        }
        counted
    }

    #[test]
    fn the_interval_holds_the_difference_of_regular_units() {
        let long = |shortest: Duration, step, random: &mut Rng| {
            length(shortest.max(Duration::from_secs_f64(step) * STEPS), random)
        };
        // Lengths that do not take the time of a step into account, as if the steps had become slower after their time
        // was measured.
        let short = |shortest: Duration, _, random: &mut Rng| length(shortest, random);
        let few = [28, 140].repeat(40);
        for [missed, all] in [judge(SERVICES, &few, false, long), judge(SERVICES, &few, false, short)] {
            println!("{missed} of {all} miss it");
            // 1 % of the intervals are expected to miss the true difference. The probability that more than 13 miss it
            // is one in a thousand.
            assert!(all == 560 && missed <= 13, "{missed} of {all}");
        }
        let [missed, all] = judge(SLOW, &MANY, false, short);
        assert!(all == 28 && missed <= 2, "{missed} of {all}");
    }

    #[test]
    fn slices_that_are_lengthened_until_the_count_grows_would_be_wrong() {
        let [missed, all] = judge(SLOW, &MANY, true, |shortest, _, random| length(shortest, random));
        assert!(missed * 2 > all, "{missed} of {all}");
    }

    #[test]
    fn slices_of_one_length_would_be_wrong_however_many_units_they_hold() {
        let [missed, all] = judge(SERVICES, &[28, 140].repeat(40), false, |second, step, _| {
            second.max(Duration::from_secs_f64(step) * 50)
        });
        assert!(missed * 4 > all, "{missed} of {all}");
    }
}
