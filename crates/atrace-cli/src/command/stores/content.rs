//! The patterns and tags that a property store enables, and how the child process that reads a store encodes them in
//! its answer.
//!
//! An answer is a list of parts. It consists of `ok`, the tags (eight bytes, little-endian) and the patterns, or
//! of `fault` and an error message.

use atrace::AtraceTag;
use atrace_sys::privsep::{Answer, parse};

/// The patterns and tags of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) patterns: Vec<String>,
    pub(crate) tags: AtraceTag,
}

impl Default for Content {
    fn default() -> Self {
        Self { patterns: Vec::new(), tags: AtraceTag::empty() }
    }
}

impl Content {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut answer = Answer::default();
        answer.add("ok").add(self.tags.bits().to_le_bytes());
        self.patterns.iter().for_each(|pattern| {
            answer.add(pattern);
        });
        answer.bytes()
    }

    /// Encodes an error message as an answer.
    pub(crate) fn fault(text: &str) -> Vec<u8> {
        let mut answer = Answer::default();
        answer.add("fault").add(&text.as_bytes()[..text.len().min(4096)]);
        answer.bytes()
    }

    /// Decodes an answer. The answer comes from a process of another user, so it is untrusted.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let no_answer = || "its answer can't be parsed".to_owned();
        let parts = parse(bytes).ok_or_else(no_answer)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match parts.as_slice() {
            [b"ok", tags, patterns @ ..] => {
                let tags = u64::from_le_bytes((*tags).try_into().map_err(|_| no_answer())?);
                let tags = AtraceTag::from_bits_retain(tags) & AtraceTag::ValidMask;
                Ok(Self { patterns: patterns.iter().map(|pattern| text(pattern)).collect(), tags })
            }
            [b"fault", fault] => Err(text(fault)),
            _ => Err(no_answer()),
        }
    }

    /// Returns how many times the store lists the pattern.
    pub(crate) fn count(&self, pattern: &str) -> usize {
        self.patterns.iter().filter(|other| *other == pattern).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read() {
        let content = Content { patterns: vec!["*".into(), String::new()], tags: AtraceTag::Camera };
        assert_eq!(Content::parse(&content.bytes()), Ok(content.clone()));
        assert_eq!(Content::parse(&Content::fault("no room")), Err("no room".to_owned()));
        let bytes = content.bytes();
        for end in 0..bytes.len() {
            // An answer that is cut between two patterns can still be parsed.
            if let Ok(part) = Content::parse(&bytes[..end]) {
                assert!(part.patterns.len() < 2, "{end}");
            }
        }
        assert!(Content::parse(b"").is_err());
    }
}
