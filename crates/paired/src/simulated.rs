//! Simulated machines, on which the true difference between two operations is known. They are used to test the rules by
//! which comparisons are decided.

use fastrand::Rng;

use crate::sample::Sample;

/// A simulated machine, with its disturbances. Times are microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// A description of the disturbances.
    pub name: &'static str,
    /// A state that comes and goes, and in which the machine is slower.
    pub slow: Option<Slow>,
    /// Whether the speed drifts by up to a third.
    pub drifts: bool,
    /// Bursts in which another program takes about a third of the time: the mean duration of a burst, and the mean time
    /// between two bursts.
    pub bursts: Option<[f64; 2]>,
    /// How many times per second the host stops the virtual processor for some milliseconds.
    pub stops: f64,
}

/// A state of the machine in which all work takes longer.
#[derive(Clone, Copy, Debug)]
pub struct Slow {
    /// The factor by which an operation is slower.
    pub operation: f64,
    /// The factor by which the chain (work of known length, which shows the processor's speed) is slower.
    pub chain: f64,
    /// The mean duration of the state, and the mean time between two such states.
    pub lasts: [f64; 2],
}

impl Machine {
    /// A machine without disturbances.
    pub const QUIET: Self = Self { name: "quiet", slow: None, drifts: false, bursts: None, stops: 0.0 };

    /// Returns a quiet machine, machines with one kind of disturbance each, and a machine with several kinds.
    pub fn all() -> Vec<Self> {
        let slow = |operation, chain, lasts| Some(Slow { operation, chain, lasts });
        vec![
            Self::QUIET,
            Self { name: "two speeds, for seconds", slow: slow(1.7, 1.7, [6e5; 2]), ..Self::QUIET },
            // The speed changes between the two slices of a comparison, and within a slice.
            Self { name: "two speeds, for a slice", slow: slow(1.7, 1.7, [500.0; 2]), ..Self::QUIET },
            Self { name: "slow memory", slow: slow(1.4, 1.7, [2e3, 4e3]), ..Self::QUIET },
            // Another thread runs on the second hyperthread. A chain (see [`Slow`]) mostly waits for its own results,
            // so it is hardly slowed down.
            Self { name: "a busy sibling", slow: slow(1.25, 1.02, [2e4, 4e4]), ..Self::QUIET },
            Self { name: "a sibling, for a slice", slow: slow(1.25, 1.02, [300.0, 900.0]), ..Self::QUIET },
            Self { name: "drifting", drifts: true, ..Self::QUIET },
            Self { name: "a neighbour", bursts: Some([6e3, 14e3]), ..Self::QUIET },
            // The bursts are shorter than a slice: a burst slows one slice of a comparison, and not the chains beside
            // the slice.
            Self { name: "short bursts", bursts: Some([100.0, 500.0]), ..Self::QUIET },
            Self { name: "a host that stops it", stops: 100.0, ..Self::QUIET },
            Self {
                name: "all of that",
                slow: slow(1.5, 1.6, [3e3, 9e3]),
                drifts: true,
                bursts: Some([400.0, 3e3]),
                stops: 20.0,
            },
        ]
    }
}

/// The current state of a simulated machine.
#[derive(Debug)]
pub struct Simulated {
    machine: Machine,
    random: Rng,
    /// The time since the start, in microseconds.
    pub now: f64,
    is_slow: bool,
    drift: f64,
    is_burst: bool,
    /// The time when the current slow or normal state ends, and the time when the current burst or pause
    /// ends.
    until: [f64; 2],
}

impl Simulated {
    /// Creates a machine whose disturbances are determined by random numbers from `seed`.
    pub fn new(machine: Machine, seed: u64) -> Self {
        let random = Rng::with_seed(seed);
        Self { machine, random, now: 0.0, is_slow: false, drift: 1.0, is_burst: false, until: [0.0; 2] }
    }

    /// Returns a random factor near 1 for the variation between runs. Outliers only make a run slower.
    fn jitter(&mut self, part: f64) -> f64 {
        let normal = (0..4).map(|_| self.random.f64() - 0.5).sum::<f64>() * 1.7;
        let outlier = if self.random.f64() < 0.02 { self.random.f64() } else { 0.0 };
        1.0 + part * normal + outlier
    }

    /// Returns a random duration with this mean (exponential distribution).
    fn lasts(&mut self, mean: f64) -> f64 {
        -(1.0 - self.random.f64()).ln() * mean
    }

    fn go_on(&mut self, micros: f64) {
        self.now += micros;
        if let Some(slow) = self.machine.slow.filter(|_| self.now > self.until[0]) {
            self.is_slow = !self.is_slow;
            self.until[0] = self.now + self.lasts(slow.lasts[usize::from(!self.is_slow)]);
        }
        if let Some(bursts) = self.machine.bursts.filter(|_| self.now > self.until[1]) {
            self.is_burst = !self.is_burst;
            self.until[1] = self.now + self.lasts(bursts[usize::from(!self.is_burst)]);
        }
        if self.machine.drifts {
            let step = (self.random.f64() - 0.5) * micros * 2e-5;
            self.drift = (self.drift + step).clamp(1.0, 1.33);
        }
    }

    /// Simulates work that would take `micros` microseconds without disturbances: advances the time, and returns the
    /// duration of the work. The work runs in steps, because the state of the machine can change during the work.
    pub fn takes(&mut self, micros: f64, jitter: f64, is_chain: bool) -> f64 {
        const STEP: f64 = 50.0;
        let (steps, jitter) = ((micros / STEP).ceil(), self.jitter(jitter));
        let mut all = 0.0;
        for _ in 0..steps as u32 {
            let slow = self.machine.slow.filter(|_| self.is_slow);
            let slow = slow.map_or(1.0, |slow| if is_chain { slow.chain } else { slow.operation });
            let mut took = micros / steps * slow * self.drift * jitter;
            // Work that is shorter than a step may fall between the disturbances of a burst.
            if self.is_burst && self.random.f64() * STEP < micros && self.random.bool() {
                took += self.random.f64() * 2.0 * STEP;
            }
            if self.random.f64() * 1e6 < self.machine.stops * took {
                took += self.lasts(4e3);
            }
            self.go_on(took);
            all += took;
        }
        all
    }

    /// Simulates three runs of a chain of two microseconds, and returns the duration of the shortest run.
    fn chain(&mut self) -> f64 {
        (0..3).map(|_| self.takes(2.0, 0.002, true)).fold(f64::INFINITY, f64::min)
    }

    /// Simulates a slice of `micros` microseconds, of an operation whose true time is `ns` nanoseconds.
    pub fn slice(&mut self, ns: f64, micros: f64) -> Sample {
        let before = self.chain();
        let took = self.takes(micros, 0.01, false);
        let after = self.chain();
        Sample { ns: ns * took / micros, chain: [before * 1e3, after * 1e3] }
    }
}
