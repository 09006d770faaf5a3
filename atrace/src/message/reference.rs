//! A second, simple implementation of the text format, to which tests compare the results of the encoder; and checks of
//! the properties that every message must have.
//!
//! The tests in this folder and the fuzz target use this module. The fuzz target includes the source files of
//! `Kind` and `Message`.

use std::fmt;

use atrace_sys::process::ProcessId;

use super::{Kind, Message, NameWriter};

/// The parts of an event: the input of the encoder.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) kind: Kind,
    pub(crate) pid: u32,
    pub(crate) track: String,
    pub(crate) name: String,
}

/// A function that appends a text to a name.
type Push = fn(&mut NameWriter<'_>, &str);

/// A function for each kind of event, which makes this kind from a number that is truncated to the kind's range.
pub(crate) const KINDS: [fn(i64) -> Kind; 11] = [
    |_| Kind::Begin,
    |_| Kind::End,
    |number| Kind::AsyncBegin((number as i32).into()),
    |number| Kind::AsyncEnd((number as i32).into()),
    |number| Kind::TrackBegin((number as i32).into()),
    |number| Kind::TrackEnd((number as i32).into()),
    |_| Kind::Instant,
    |_| Kind::TrackInstant,
    |number| Kind::Int((number as i32).into()),
    Kind::Int64,
    |number| Kind::Float((number as f64 + 0.25).to_bits()),
];

impl Event {
    /// Returns the track, the name and the number as text, if the kind has them.
    fn fields(&self) -> (Option<&str>, Option<&str>, Option<String>) {
        let (track, name, number) = match self.kind {
            Kind::Begin | Kind::Instant => (false, true, None),
            Kind::End => (false, false, None),
            Kind::AsyncBegin(number) | Kind::AsyncEnd(number) | Kind::Int(number) | Kind::Int64(number) => {
                (false, true, Some(number.to_string()))
            }
            Kind::Float(bits) => (false, true, Some((f64::from_bits(bits).round() as i64).to_string())),
            Kind::TrackBegin(number) => (true, true, Some(number.to_string())),
            Kind::TrackEnd(number) => (true, false, Some(number.to_string())),
            Kind::TrackInstant => (true, true, None),
        };
        (track.then_some(&*self.track), name.then_some(&*self.name), number)
    }

    /// Returns three results of the encoder under test: the message, and its two C strings (the track and the name).
    pub(crate) fn encode(&self) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
        self.encode_by(0, |writer, name| writer.push_str(name))
    }

    /// Does the same as [`encode`](Self::encode), but writes the name in pieces of `piece` characters (0: in one
    /// piece).
    fn encode_by(
        &self,
        piece: usize,
        push: impl Fn(&mut NameWriter<'_>, &str),
    ) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
        let (track, name, _) = self.fields();
        let mut message = Message::new();
        let write = name.map(|name| {
            let push = &push;
            move |writer: &mut NameWriter<'_>| {
                if piece == 0 {
                    return push(writer, name);
                }
                let mut rest = name;
                while !rest.is_empty() {
                    let end = rest.char_indices().nth(piece).map_or(rest.len(), |(at, _)| at);
                    push(writer, &rest[..end]);
                    rest = &rest[end..];
                }
                push(writer, "");
            }
        });
        let texts = message.encode(self.kind, ProcessId::new(self.pid), track, write);
        let bytes = message.bytes().to_vec();
        let none = message.c_strings(Default::default());
        assert_eq!([none.0, none.1].map(std::ffi::CStr::to_bytes_with_nul), [b"\0", b"\0"]);
        let (track, name) = message.c_strings(texts);
        let (track, name) = (track.to_bytes().to_vec(), name.to_bytes().to_vec());
        assert_eq!(message.restore(texts, bytes.len()), bytes, "the C strings left traces: {self:?}");
        (bytes, track, name)
    }

    /// Returns the message for this event that the documentation of the format requires.
    fn expected(&self) -> String {
        let (track, name, number) = self.fields();
        let mut message = format!("{}|{}", char::from(self.kind.letter()), self.pid);
        if let Some(track) = track {
            // After the track, there must be room for a bar, any character, a bar and any cookie.
            let mut track = cut(&escaped(track, true), 1023 - 17 - (message.len() + 1));
            if track.is_empty() {
                track = "?".to_owned();
            }
            message = message + "|" + &track;
        }
        let number = number.map_or(String::new(), |number| format!("|{number}"));
        if let Some(name) = name {
            let mut name =
                cut(&escaped(name, self.kind != Kind::Begin), 1023 - number.len() - (message.len() + 1));
            if self.kind != Kind::Begin {
                if name.is_empty() {
                    name = "?".to_owned();
                } else if number.is_empty() && name.chars().all(|c| c == ' ') {
                    name = name[1..].to_owned() + "?";
                }
            }
            message = message + "|" + &name;
        }
        message.replace("</script>", "?/script>") + &number
    }

    /// Checks that the encoder's message for this event has all promised properties.
    pub(crate) fn check(&self) {
        let (bytes, c_track, c_name) = self.encode();
        let (track, name, number) = self.fields();
        let (has_track, has_name, has_number) = (track.is_some(), name.is_some(), number.is_some());
        let text = std::str::from_utf8(&bytes).unwrap_or_else(|_| panic!("not UTF-8: {self:?}"));
        assert_eq!(text, self.expected(), "{self:?}");

        assert!(bytes.len() <= 1023, "{} bytes: {self:?}", bytes.len());
        assert!(bytes.iter().all(|byte| *byte >= 0x20 && *byte != 0x7f), "control bytes: {self:?}");
        assert!(!text.contains("</script>"), "ends a trace in HTML: {self:?}");
        assert!(text.starts_with(&format!("{}|{}", char::from(self.kind.letter()), self.pid)));
        let parts: Vec<&str> = match self.kind {
            Kind::Begin => text.splitn(3, '|').collect(),
            _ => text.split('|').collect(),
        };
        let wanted = 2 + usize::from(has_track) + usize::from(has_name) + usize::from(has_number);
        assert_eq!(parts.len(), wanted, "{text:?}");
        assert!(self.kind == Kind::Begin || parts.iter().all(|part| !part.is_empty()), "{text:?}");
        assert!(!has_number || parts[wanted - 1].parse::<i64>().is_ok(), "{text:?}");
        assert_eq!(c_track, if has_track { parts[2].as_bytes() } else { b"" });
        assert_eq!(c_name, if has_name { parts[2 + usize::from(has_track)].as_bytes() } else { b"" });

        // The message does not depend on the pieces in which the name is written.
        let ways: [(usize, Push); 5] = [
            (64, |writer, text| writer.push_str(text)),
            (1, |writer, text| writer.push_pieces([text])),
            (2, |writer, text| _ = fmt::Write::write_str(writer, text)),
            (7, |writer, text| {
                let (one, other) = text.split_at(text.chars().next().map_or(0, char::len_utf8));
                writer.push_pieces(["", one, other]);
            }),
            (0, |writer, text| _ = fmt::Write::write_str(writer, text)),
        ];
        for (piece, push) in ways.into_iter().filter(|(piece, _)| !cfg!(miri) || *piece == 0) {
            assert_eq!(self.encode_by(piece, push).0, bytes, "in pieces of {piece}: {self:?}");
        }
        // Texts that need no replacement and no cut are not changed.
        let again = Self {
            track: String::from_utf8(c_track).unwrap_or_default(),
            name: String::from_utf8(c_name).unwrap_or_default(),
            ..self.clone()
        };
        assert_eq!(again.encode().0, bytes, "{self:?}");
        // A track has the same text in each of its events.
        if has_track {
            for (name, cookie) in [("", 0), ("é", -1), (&*self.track, i32::MIN.into())] {
                for kind in [Kind::TrackBegin(cookie), Kind::TrackEnd(cookie), Kind::TrackInstant] {
                    let other = Self { kind, name: name.to_owned(), ..self.clone() };
                    let (other, ..) = other.encode();
                    assert_eq!(
                        other.split(|byte| *byte == b'|').nth(2),
                        Some(parts[2].as_bytes()),
                        "{self:?}"
                    );
                }
            }
        }
    }
}

fn escaped(text: &str, bar: bool) -> String {
    let replaced = |c| match c {
        '\0'..='\x1f' | '\x7f' => '?',
        '|' if bar => '/',
        c => c,
    };
    text.chars().map(replaced).collect()
}

fn cut(text: &str, room: usize) -> String {
    let mut cut = String::new();
    for c in text.chars() {
        if cut.len() + c.len_utf8() > room {
            break;
        }
        cut.push(c);
    }
    cut
}
