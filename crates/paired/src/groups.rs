//! Samples that form two separate groups.

/// Two separate groups of samples, such as the times of a program that sometimes takes a fast path and sometimes a slow
/// path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Groups {
    /// The medians of the lower and of the upper group.
    pub medians: [f64; 2],
    /// The fraction of the samples that is in the upper group.
    pub upper: f64,
}

impl Groups {
    /// Divides the samples into two groups, if they form groups: each group must have at least a tenth of the samples,
    /// and little variation must be left within the groups. Otherwise returns `None`. The samples must be above zero.
    /// Returns `None` for fewer than twenty samples.
    ///
    /// The boundary between the groups is chosen so that the variation within the groups is least (Otsu, "A threshold
    /// selection method from gray-level histograms", 1979), where the variation is the variance of the samples'
    /// logarithms. If the samples are distributed evenly, a quarter of the variation is left within the groups; if they
    /// are distributed normally, more than a third is left.
    pub fn of(samples: &[f64]) -> Option<Self> {
        const LEFT: f64 = 0.1;
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        if n < 20 {
            return None;
        }
        let logs: Vec<f64> = sorted.iter().map(|x| x.ln()).collect();
        let variation = |all: &[f64]| {
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            all.iter().map(|x| (x - mean).powi(2)).sum::<f64>()
        };
        let mean = logs.iter().sum::<f64>() / n as f64;
        // The variation between the groups grows with the distance between the sum of a group's logarithms and the
        // group's size times the mean.
        let (mut sum, mut best) = (0.0, (0.0, 0));
        for (at, x) in logs.iter().enumerate().take(n - n.div_ceil(10)) {
            sum += x - mean;
            let count = (at + 1) as f64;
            let between = sum * sum * n as f64 / (count * (n as f64 - count));
            if at + 1 >= n.div_ceil(10) && between > best.0 {
                best = (between, at + 1);
            }
        }
        let (_, at) = best;
        let (low, high) = logs.split_at(at);
        let is_apart = at > 0 && variation(low) + variation(high) <= LEFT * variation(&logs);
        is_apart.then(|| Self {
            medians: [sorted[at / 2], sorted[at + (n - at) / 2]],
            upper: (n - at) as f64 / n as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    #[test]
    fn two_groups_are_found_and_one_is_not_split() {
        let mut random = Rng::with_seed(3);
        let mut normal = move || (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        let two: Vec<f64> =
            (0..60).map(|i| if i % 3 == 0 { 140.0 } else { 100.0 } * (1.0 + 0.02 * normal())).collect();
        let Groups { medians: [low, high], upper } = Groups::of(&two).unwrap();
        assert!((low - 100.0).abs() < 3.0 && (high - 140.0).abs() < 4.0 && (upper - 1.0 / 3.0).abs() < 0.01);
        for _ in 0..200 {
            let one: Vec<f64> = (0..25).map(|_| 100.0 * (0.05 * normal()).exp()).collect();
            // Neither the tail of a distribution nor a few outliers count as a second group.
            let tailed: Vec<f64> = (0..40).map(|_| 100.0 + normal().exp()).collect();
            let outliers: Vec<f64> = (0..40).map(|i| if i < 3 { 300.0 } else { 100.0 + normal() }).collect();
            for samples in [one, tailed, outliers] {
                assert_eq!(Groups::of(&samples), None, "{samples:?}");
            }
        }
        assert_eq!(Groups::of(&two[..19]), None);
        assert_eq!(Groups::of(&[1.0; 30]), None);
    }
}
