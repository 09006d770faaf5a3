//! Walks the frames of a stack, which are linked by frame pointers, and checks each link.
//!
//! This module reads no memory itself: the caller's function `read` returns the two words at an address. `read` is
//! called only with checked addresses: an address is aligned, and both words are within the stack, above the stack
//! pointer and above each earlier frame. So a walk goes up, reads no address twice, and ends.

/// The bounds of a thread's stack and its outermost frame, as far as they are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KnownStack {
    /// The lowest address that a walk may read.
    pub(super) low: usize,
    /// The address after the last byte that a walk may read.
    pub(super) high: usize,
    /// The outermost frame, at which a walk must end. If its position is 0, the outermost frame is not known
    /// yet.
    pub(super) root: StackFrame,
}

impl KnownStack {
    /// The bounds for a stack of which no word may be read.
    pub(super) const NONE: Self = Self { low: 0, high: 0, root: StackFrame { at: 0, address: 0 } };
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StackFrame {
    pub(super) at: usize,
    /// The return address in the frame.
    pub(super) address: usize,
}

/// The registers from which a walk begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registers {
    /// The stack pointer. Memory below it is not in use.
    pub(super) stack: usize,
    /// The frame pointer register. It holds the address of the function's frame or, in code without frame pointers, any
    /// number.
    pub(super) frame: usize,
}

/// The address of a frame, which starts with two words: the address of the caller's frame, and the return address. Both
/// words may be read, because the address was checked.
#[derive(Debug)]
pub(super) struct FrameAddress(usize);

impl FrameAddress {
    #[inline(always)]
    pub(super) fn get(&self) -> usize {
        self.0
    }
}

/// The size of the two words at the start of a frame, in bytes.
pub(super) const FRAME: usize = 2 * size_of::<usize>();
/// The maximum number of frames above the outermost frame that has a frame pointer. These frames belong to the
/// functions of the C library that start a thread, which need not have frame pointers.
pub(super) const OUTER: usize = 4;
/// The maximum number of frames that a walk follows after its buffer is full, to check that the walk ends at the
/// outermost frame.
const FURTHER: usize = 512;

/// A walk along the frames of a stack: its present position and its bounds.
pub(super) struct Walker<R> {
    stack: KnownStack,
    /// The address of the next frame. This address has not been checked yet.
    at: usize,
    /// The end of the previous frame, below which the next frame must not begin.
    low: usize,
    /// The highest address at which there is room for a frame.
    last: usize,
    read: R,
}

impl<R: Fn(FrameAddress) -> (usize, usize)> Walker<R> {
    /// Begins a walk. `read` returns the two words at an address: the address of the caller's frame, and the return
    /// address. Returns `None` if the stack pointer is outside of the known stack.
    #[inline(always)]
    pub(super) fn new(stack: KnownStack, from: Registers, read: R) -> Option<Self> {
        let within = from.stack >= stack.low && from.stack < stack.high;
        let last = stack.high.checked_sub(FRAME)?;
        within.then_some(Self { stack, at: from.frame, low: from.stack, last, read })
    }

    /// Returns the frame at the present address, if that address may be read, and moves on to the caller's frame.
    #[inline(always)]
    fn next(&mut self) -> Option<StackFrame> {
        let at = self.at;
        if at < self.low || at > self.last || !at.is_multiple_of(align_of::<usize>()) {
            return None;
        }
        let (caller, address) = (self.read)(FrameAddress(at));
        (self.at, self.low) = (caller, at + FRAME);
        Some(StackFrame { at, address })
    }

    /// Follows the frames and writes their return addresses to `into`. Returns the number of addresses if the frames
    /// lead to the outermost frame, or go on for [`FURTHER`] frames after `into` is full. Otherwise returns `None`;
    /// `into` may then contain anything.
    #[inline(always)]
    pub(super) fn follow(mut self, into: &mut [usize]) -> Option<usize> {
        let root = self.stack.root;
        if root.at == 0 {
            return None;
        }
        for (found, place) in into.iter_mut().enumerate() {
            let frame = self.next()?;
            *place = frame.address;
            if frame.at == root.at {
                // Since the outermost frame was stored, another frame may have taken its place at this address.
                return (frame.address == root.address).then_some(found + 1);
            }
        }
        for _ in 0..FURTHER {
            let frame = self.next()?;
            if frame.at == root.at {
                return (frame.address == root.address).then_some(into.len());
            }
        }
        // So many linked frames are hardly a coincidence, so they count as frames of a real stack.
        Some(into.len())
    }

    /// Follows frames as long as their return addresses agree with `unwound`, the addresses that the unwinder has
    /// found. If at most [`OUTER`] addresses of `unwound` then remain (of functions of the C library), returns the last
    /// frame that agrees: the thread's outermost frame.
    pub(super) fn outermost(mut self, unwound: &[usize]) -> Option<StackFrame> {
        let mut agreed = 0;
        let mut last = None;
        while let Some(frame) = self.next()
            && unwound.get(agreed) == Some(&frame.address)
        {
            last = Some(frame);
            agreed += 1;
        }
        // The agreement of a single frame may be a coincidence, because the register may hold any number.
        last.filter(|_| agreed > 1 && unwound.len() - agreed <= OUTER)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const LOW: usize = 0x7000_0000;
    const WORD: usize = size_of::<usize>();

    /// A simulated stack, which checks that only allowed addresses are read.
    struct Memory {
        words: Vec<usize>,
        /// The lowest address that may be read next.
        next: Cell<usize>,
    }

    impl Memory {
        fn new(words: Vec<usize>) -> Self {
            Self { words, next: Cell::new(LOW) }
        }

        /// Makes linked frames, one above the other, each after `data` words. The return addresses are 1001, 1002 and
        /// so on.
        fn linked(frames: usize, data: usize) -> Self {
            let mut words = Vec::new();
            for frame in 1..=frames {
                words.extend(std::iter::repeat_n(usize::MAX, data));
                words.extend([LOW + (words.len() + 2 + data) * WORD, 1000 + frame]);
            }
            Self::new(words)
        }

        fn high(&self) -> usize {
            LOW + self.words.len() * WORD
        }

        fn stack(&self, root: StackFrame) -> KnownStack {
            KnownStack { low: LOW, high: self.high(), root }
        }

        fn read(&self, at: FrameAddress) -> (usize, usize) {
            let at = at.get();
            assert!(at.is_multiple_of(WORD) && at >= self.next.get() && at + FRAME <= self.high(), "{at:x}");
            self.next.set(at + FRAME);
            let index = (at - LOW) / WORD;
            (self.words[index], self.words[index + 1])
        }

        fn follow(&self, stack: KnownStack, from: Registers, into: &mut [usize]) -> Option<usize> {
            self.next.set(from.stack);
            Walker::new(stack, from, |place| self.read(place))?.follow(into)
        }

        fn outermost(&self, from: Registers, unwound: &[usize]) -> Option<StackFrame> {
            self.next.set(from.stack);
            Walker::new(self.stack(StackFrame::default()), from, |place| self.read(place))?.outermost(unwound)
        }
    }

    /// Returns the frame with this number (from 1) of the stack that [`Memory::linked`] makes if it puts no data
    /// between the frames.
    fn frame(number: usize) -> StackFrame {
        StackFrame { at: LOW + (number - 1) * FRAME, address: 1000 + number }
    }

    const FIRST: Registers = Registers { stack: LOW, frame: LOW };

    #[test]
    fn a_walk_ends_at_the_outermost_frame_or_counts_for_nothing() {
        let memory = Memory::linked(5, 0);
        let mut into = [0; 7];
        assert_eq!(memory.follow(memory.stack(StackFrame::default()), FIRST, &mut into), None);
        assert_eq!(into, [0; 7]);
        assert_eq!(memory.follow(memory.stack(frame(5)), FIRST, &mut into), Some(5));
        assert_eq!(into, [1001, 1002, 1003, 1004, 1005, 0, 0]);
        assert_eq!(memory.follow(memory.stack(frame(3)), FIRST, &mut into), Some(3));
        assert_eq!(memory.follow(memory.stack(frame(1)), FIRST, &mut into), Some(1));
        // The buffer is too small for all frames. The walk still checks where the frames end.
        for room in 0..=5 {
            into.fill(0);
            assert_eq!(memory.follow(memory.stack(frame(5)), FIRST, &mut into[..room]), Some(room));
            assert_eq!(into[..room], [1001, 1002, 1003, 1004, 1005][..room]);
            assert!(into[room..].iter().all(|address| *address == 0));
        }
        // Three wrong outermost frames: one that does not exist, one that is not a frame, and one whose return address
        // has changed.
        let elsewhere = [
            frame(6),
            StackFrame { at: LOW + WORD, address: 1001 },
            StackFrame { address: 1004, ..frame(5) },
        ];
        for root in elsewhere {
            for room in 0..=7 {
                assert_eq!(memory.follow(memory.stack(root), FIRST, &mut into[..room]), None, "{root:?}");
            }
        }
    }

    #[test]
    fn nothing_outside_of_the_stack_is_read() {
        let memory = Memory::linked(5, 0);
        let whole = memory.stack(frame(5));
        let mut into = [0; 7];
        let top = whole.high;
        let not_there = [0, 1, WORD, LOW - FRAME, LOW - WORD, LOW - 1, top - WORD, top - 1, top, top + WORD];
        for at in not_there.into_iter().chain([1 << (usize::BITS - 1), usize::MAX - WORD + 1, usize::MAX]) {
            assert_eq!(memory.follow(whole, Registers { frame: at, ..FIRST }, &mut into), None, "{at:x}");
            let mut memory = Memory::linked(5, 0);
            memory.words[4] = at;
            assert_eq!(memory.follow(whole, FIRST, &mut into), None, "{at:x}");
            assert_eq!(memory.follow(whole, FIRST, &mut into[..1]), None, "{at:x}");
        }
        // Addresses that are not aligned.
        for odd in 1..WORD {
            assert_eq!(memory.follow(whole, Registers { frame: LOW + odd, ..FIRST }, &mut into), None);
        }
        // A stack pointer that is not on this stack.
        for pointer in [0, 1, LOW - WORD, LOW - 1, top, top + 1, usize::MAX] {
            let from = Registers { stack: pointer, ..FIRST };
            assert_eq!(memory.follow(whole, from, &mut into), None, "{pointer:x}");
            memory.next.set(0);
            assert_eq!(memory.outermost(from, &[1001, 1002]), None);
        }
        // A stack that ends lower or begins higher.
        assert_eq!(memory.follow(KnownStack { high: top - WORD, ..whole }, FIRST, &mut into), None);
        assert_eq!(memory.follow(KnownStack { low: LOW + 1, ..whole }, FIRST, &mut into), None);
        for (low, high) in [(LOW, LOW), (LOW, LOW + 1), (LOW, LOW + FRAME - 1), (0, WORD), (1, 1), (0, 0)] {
            assert_eq!(memory.follow(KnownStack { low, high, ..whole }, FIRST, &mut into), None);
        }
        let nowhere = KnownStack { low: 0, high: WORD, ..whole };
        assert_eq!(memory.follow(nowhere, Registers { stack: 0, ..FIRST }, &mut into), None);
        // Nothing is read below the stack pointer, where a signal handler may write at any time.
        let above = Registers { stack: LOW + 1, frame: LOW };
        assert_eq!(memory.follow(whole, above, &mut into), None);
        let second = Registers { stack: LOW + 1, frame: LOW + FRAME };
        assert_eq!(memory.follow(whole, second, &mut into), Some(4));
        // The last two words of the stack may be a frame.
        let last = Registers { stack: top - 1, frame: top - FRAME };
        assert_eq!(memory.follow(whole, last, &mut into), None);
        assert_eq!(memory.follow(whole, Registers { stack: top - FRAME, ..last }, &mut into), Some(1));
    }

    #[test]
    fn frames_that_do_not_rise_end_a_walk() {
        for (data, root) in [(0, frame(5)), (3, StackFrame { at: LOW + 23 * WORD, address: 1005 })] {
            let mut memory = Memory::linked(5, data);
            let from = Registers { stack: LOW, frame: LOW + data * WORD };
            let all = memory.stack(root);
            assert_eq!(memory.follow(all, from, &mut [0; 16]), Some(5));
            // Links the third frame to itself, to an earlier frame, or into the middle of one of these frames.
            let third = 2 * (2 + data) + data;
            for back in 0..third + 2 {
                memory.words[third] = LOW + back * WORD;
                for room in [16, 5, 2, 0] {
                    assert_eq!(memory.follow(all, from, &mut [0; 16][..room]), None, "{back}");
                }
            }
            // A link that skips frames is not a loop.
            memory.words[third] = root.at;
            assert_eq!(memory.follow(all, from, &mut [0; 16]), Some(4));
        }
    }

    #[test]
    fn a_stack_that_goes_on_and_on_is_believed() {
        let memory = Memory::linked(FURTHER + 20, 0);
        let root = memory.stack(StackFrame { at: 8, address: 8 });
        let mut into = [0; 21];
        assert_eq!(memory.follow(root, FIRST, &mut into[..20]), Some(20));
        assert_eq!(into[19..], [1020, 0]);
        assert_eq!(memory.next.get(), memory.high(), "it went as far as it may");
        assert_eq!(memory.follow(root, FIRST, &mut into[..21]), None);
        assert_eq!(memory.follow(memory.stack(frame(FURTHER + 20)), FIRST, &mut into), Some(21));
    }

    #[test]
    fn only_what_the_unwinder_sees_too_is_learnt() {
        let memory = Memory::linked(12, 0);
        let learnt = |unwound: &[usize]| memory.outermost(FIRST, unwound);
        let seen: Vec<usize> = (1001..1030).collect();
        assert_eq!(learnt(&seen[..12]), Some(frame(12)));
        // The C library's outer frames need no frame pointers; all other frames need them.
        assert_eq!(learnt(&seen[..12 + OUTER]), Some(frame(12)));
        assert_eq!(learnt(&seen[..12 + OUTER + 1]), None);
        assert_eq!(OUTER, 4);
        for wrong in 0..12 {
            let mut other = seen[..12].to_vec();
            other[wrong] = 1;
            // The frames agree up to the wrong frame. That is enough only if the remaining frames may be frames of the
            // C library.
            assert_eq!(learnt(&other), (12 - wrong <= OUTER).then(|| frame(wrong)), "{wrong}");
        }
        assert_eq!(learnt(&seen[1..12]), None);
        assert_eq!(learnt(&[]), None);
        assert_eq!(learnt(&seen[..1]), None);
        assert_eq!(learnt(&seen[..2]), Some(frame(2)));
        // Frames beyond the unwinder's result do not count.
        assert_eq!(learnt(&seen[..9]), Some(frame(9)));
        // Nothing is learnt from frames outside of the stack.
        assert_eq!(memory.outermost(Registers { frame: LOW - FRAME, ..FIRST }, &seen), None);
        assert_eq!(memory.outermost(Registers { stack: LOW - 1, ..FIRST }, &seen), None);
    }

    /// Walks stacks full of nearly valid frames. Only allowed addresses are read (`Memory::read` checks this), and the
    /// result follows the frames' links.
    #[test]
    fn hostile_stacks_are_survived() {
        let mut state = 7_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let [mut whole, mut nothing] = [0; 2];
        for _ in 0..if cfg!(miri) { 100 } else { 100_000 } {
            let length = 2 + random(24);
            let memory = Memory::new(
                (0..length)
                    .map(|at| match random(8) {
                        0 => random(usize::MAX),
                        1 => LOW + random(length * WORD + 9),
                        2 => LOW + random(length) * WORD,
                        _ => LOW + (at + 1 + random(4)) * WORD,
                    })
                    .collect(),
            );
            let root = LOW + random(length) * WORD;
            let address = memory.words.get((root - LOW) / WORD + 1).copied().unwrap_or(0);
            let stack = memory.stack(StackFrame { at: root, address });
            let from = Registers { stack: LOW + random(12), frame: LOW + random(6) * WORD / 2 };
            let mut into = [0; 8];
            let into = &mut into[..random(9)];
            let found = memory.follow(stack, from, into);

            let mut frames = Vec::new();
            let mut at = from.frame;
            let mut low = from.stack;
            let ended = loop {
                if at < low || at + FRAME > memory.high() || !at.is_multiple_of(WORD) {
                    break None;
                }
                let [caller, address] = memory.words[(at - LOW) / WORD..][..2] else { unreachable!() };
                frames.push(address);
                if at == root {
                    break Some(frames.len().min(into.len()));
                }
                low = at + FRAME;
                at = caller;
                // The frame's link leads out of the simulated stack.
                if at > memory.high() {
                    break None;
                }
            };
            assert_eq!(found, ended);
            if let Some(found) = found {
                assert_eq!(into[..found], frames[..found]);
            }
            *if found.is_some() { &mut whole } else { &mut nothing } += 1;
            let learnt = memory.outermost(from, &frames);
            assert!(learnt.is_none_or(|frame| frames.contains(&frame.address)));
        }
        assert!(whole * 100 > nothing && nothing * 100 > whole, "{whole} {nothing}");
    }
}
