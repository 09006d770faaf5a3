//! Finds where an event begins in a text trace.
//!
//! # The problem
//!
//! The kernel writes a thread's name unchanged into a column of 16 bytes. A name may contain a newline, which ends a
//! line but not an event. A name could also imitate the beginning of an event.
//!
//! # How it works
//!
//! An event is recognized by its whole header. The kernel alone writes the part after the name: digits that fill
//! their columns, up to the timestamp. That part is too long for a name of 15 bytes to forge. No name is trusted, and
//! no line is assumed to be complete.

/// The header of an event: `TASK-PID [(TGID)] [CPU] flags timestamp: `.
pub(crate) struct Header<'a> {
    /// The name of the thread.
    pub(crate) task: &'a [u8],
    pub(crate) tid: u32,
    pub(crate) tgid: Option<u32>,
    pub(crate) cpu: u32,
    pub(crate) timestamp: u64,
    /// The header's length in bytes.
    pub(crate) len: usize,
}

impl<'a> Header<'a> {
    /// The width of the name's column in bytes. A name has at most 15 bytes.
    pub(crate) const TASK: usize = 16;

    /// Parses the header at the start of `text`.
    pub(crate) fn parse(text: &'a [u8]) -> Option<Self> {
        let (task, rest) = text.split_at_checked(Self::TASK)?;
        let task = spaces(task.strip_prefix(b" ")?);
        let mut rest = rest.strip_prefix(b"-")?;
        let before = rest.len();
        let tid = number(&mut rest)?;
        // The thread id is padded to seven columns, and a space follows.
        let padding = 8_usize.saturating_sub(before - rest.len()).max(1);
        let (padding, after) = rest.split_at_checked(padding)?;
        rest = after;
        if padding.iter().any(|&byte| byte != b' ') {
            return None;
        }
        let mut tgid = None;
        rest = spaces(rest);
        if let Some(inner) = rest.strip_prefix(b"(") {
            rest = spaces(inner);
            tgid = number(&mut rest);
            if tgid.is_none() {
                rest = rest.get(rest.iter().take_while(|&&byte| byte == b'-').count()..)?;
            }
            rest = spaces(rest.strip_prefix(b")")?);
        }
        rest = rest.strip_prefix(b"[")?;
        let cpu = number(&mut rest)?;
        rest = spaces(rest.strip_prefix(b"] ")?);
        // The flags, which are absent if the option `irq-info` is off.
        let word = rest.iter().position(|&byte| byte == b' ' || byte == b'\n')?;
        if word > 0 && rest.get(word - 1) != Some(&b':') {
            rest = spaces(rest.get(word..)?);
        }
        let whole = number::<u64>(&mut rest)?;
        let timestamp = match rest.strip_prefix(b".") {
            Some(fraction) => {
                let (mut micros, after) = fraction.split_at_checked(6)?;
                rest = after;
                let value = number::<u64>(&mut micros).filter(|_| micros.is_empty())?;
                whole.checked_mul(1_000_000)?.checked_add(value)?.checked_mul(1_000)?
            }
            None => whole,
        };
        rest = rest.strip_prefix(b": ")?;
        Some(Self { task, tid, tgid, cpu, timestamp, len: text.len() - rest.len() })
    }
}

/// Returns the event that begins at or after `at`, without its header and its last line end, and moves `at` behind
/// it. An event ends where the next event begins, or where the kernel inserts a remark.
pub(crate) fn next<'a>(text: &'a [u8], at: &mut usize) -> Option<(Header<'a>, &'a [u8])> {
    loop {
        let rest = text.get(*at..).filter(|rest| !rest.is_empty())?;
        let Some(header) = Header::parse(rest) else {
            *at += line(rest).1;
            continue;
        };
        let start = *at + header.len;
        let (mut end, mut next) = line_end(text, start);
        while let Some(rest) = text.get(next..).filter(|rest| !rest.is_empty()) {
            if Header::parse(rest).is_some() || is_remark(line(rest).0) {
                break;
            }
            (end, next) = line_end(text, next);
        }
        *at = next;
        return Some((header, text.get(start..end)?));
    }
}

/// Returns the end of the line around `at`, and the start of the next line.
fn line_end(text: &[u8], at: usize) -> (usize, usize) {
    let (line, len) = line(text.get(at..).unwrap_or_default());
    (at + line.len(), at + len)
}

/// Returns the first line without its line end, and the line's length including the line end.
fn line(text: &[u8]) -> (&[u8], usize) {
    match text.iter().position(|&byte| byte == b'\n') {
        Some(end) => (text.get(..end).unwrap_or_default(), end + 1),
        None => (text, text.len()),
    }
}

/// Tells whether the kernel wrote this line between events, to say that a CPU's part of the buffer starts here or
/// lost events.
fn is_remark(line: &[u8]) -> bool {
    line.starts_with(b"##### CPU ") || (line.starts_with(b"CPU:") && line.ends_with(b" EVENTS]"))
}

/// Returns the bytes after the leading spaces.
fn spaces(bytes: &[u8]) -> &[u8] {
    bytes.get(bytes.iter().take_while(|&&byte| byte == b' ').count()..).unwrap_or_default()
}

/// Takes the decimal number at the start of `bytes`.
fn number<T: std::str::FromStr>(bytes: &mut &[u8]) -> Option<T> {
    let digits = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = bytes.split_at_checked(digits)?;
    let number = std::str::from_utf8(number).ok()?.parse().ok()?;
    *bytes = rest;
    Some(number)
}
