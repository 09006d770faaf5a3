use super::reference::{Event, KINDS};
use super::*;

/// A generator of pseudorandom numbers. The numbers are the same in each run, so that a failure can be repeated.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }

    fn text(&mut self) -> String {
        const PARTS: [&str; 24] = [
            "a",
            "b",
            " ",
            " ",
            "|",
            "\0",
            "\n",
            "\r",
            "\t",
            "\x1b",
            "\x1f",
            "\x7f",
            "\u{80}",
            "é",
            "€",
            "\u{ffff}",
            "😀",
            "\u{10ffff}",
            "<",
            "</script>",
            "</scrip",
            "t>",
            "</",
            "long enough for a vector of thirty-two bytes",
        ];
        let mut text = String::new();
        let length = match self.below(4) {
            0 => self.below(4),
            1 => self.below(40),
            2 => 960 + self.below(80),
            _ => self.below(1100),
        };
        // Each text consists of at most four different parts, so that equal parts often follow each other.
        let kinds: Vec<&str> = (0..1 + self.below(4)).map(|_| PARTS[self.below(PARTS.len())]).collect();
        while text.len() < length {
            text.push_str(kinds[self.below(kinds.len())]);
        }
        text
    }
}

#[test]
fn random_events_are_as_promised() {
    let mut chance = Chance(0x5eed);
    for _ in 0..if cfg!(miri) { 4 } else { 1_500 } {
        let number = match chance.below(6) {
            0 => 0,
            1 => i64::MIN,
            2 => i64::MAX,
            3 => i32::MIN.into(),
            4 => -(chance.below(100) as i64),
            _ => chance.below(1 << 31) as i64,
        };
        let event = Event {
            kind: KINDS[chance.below(KINDS.len())](number),
            pid: 10u32.pow(chance.below(7) as u32) + chance.below(2) as u32,
            track: chance.text(),
            name: chance.text(),
        };
        event.check();
    }
}

/// Checks texts with characters of every width, at every offset around the position of the cut.
#[test]
fn a_cut_is_between_characters_at_every_offset() {
    let (step, wides, kinds) = if cfg!(miri) { (39, 1, 1) } else { (1, 6, KINDS.len()) };
    for wide in &["€", "é", "😀", "|", "\n", "</script>"][..wides] {
        for kind in KINDS.into_iter().rev().take(kinds) {
            for before in (985..1025).step_by(step) {
                let name = "x".repeat(before) + &wide.repeat(12);
                Event { kind: kind(-5), pid: 123, track: "t".into(), name: name.clone() }.check();
                Event { kind: kind(5), pid: 4_194_304, track: name.clone(), name: "n".into() }.check();
                Event { kind: kind(i32::MIN.into()), pid: 1, track: name.clone(), name: name.clone() }
                    .check();
            }
        }
    }
}

/// Checks every ASCII character, alone and in the middle of texts of up to 39 letters.
#[test]
fn every_character_is_as_promised_at_every_place() {
    let places = if cfg!(miri) { 2 } else { 40 };
    for byte in (0..=0x7f_u8).step_by(if cfg!(miri) { 62 } else { 1 }) {
        for length in 0..places {
            let mut name = "abcdefghijklmnopqrstuvwxyzabcdefghijklmnop"[..length].to_owned();
            name.insert(length / 2, char::from(byte));
            for kind in [Kind::Begin, Kind::Instant, Kind::Int(1), Kind::TrackInstant] {
                Event { kind, pid: 77, track: name.clone(), name: name.clone() }.check();
            }
        }
    }
}

#[test]
fn spaces_at_the_end_of_a_line_are_seen() {
    for spaces in if cfg!(miri) { [1, 2, 3, 40] } else { [1, 2, 40, 2000] } {
        let name = " ".repeat(spaces);
        for kind in KINDS {
            Event { kind: kind(1), pid: 7, track: name.clone(), name: name.clone() }.check();
        }
    }
}

#[test]
fn an_empty_begin_stays_empty() {
    let event = |kind| Event { kind, pid: 7, track: String::new(), name: String::new() };
    assert_eq!(event(Kind::Begin).encode().0, b"B|7|");
    assert_eq!(event(Kind::End).encode().0, b"E|7");
    assert_eq!(event(Kind::AsyncBegin(1)).encode().0, b"S|7|?|1");
    assert_eq!(event(Kind::TrackBegin(1)).encode().0, b"G|7|?|?|1");
    assert_eq!(event(Kind::TrackEnd(1)).encode().0, b"H|7|?|1");
    assert_eq!(event(Kind::TrackInstant).encode().0, b"N|7|?|?");
    KINDS.iter().for_each(|kind| event(kind(1)).check());
}

#[test]
fn after_a_cut_nothing_more_is_written() {
    let mut message = Message::new();
    let name = |writer: &mut NameWriter<'_>| {
        writer.push_str(&"x".repeat(1014));
        assert!(!writer.is_full());
        writer.push_str("€€"); // There is room for two bytes, but each of the characters has three.
        assert!(writer.is_full());
        writer.push_str("y");
        writer.push_int(1);
        writer.push_fmt(format_args!("{}", 2));
        assert!(fmt::Write::write_str(writer, "").is_err());
        assert!(format!("{writer:?}").starts_with("NameWriter"));
    };
    message.encode(Kind::Begin, ProcessId::new(1234), None, Some(name));
    assert_eq!(message.bytes(), ("B|1234|".to_owned() + &"x".repeat(1014)).as_bytes());
}

/// Checks names that are written in pieces, with pieces of the lengths at which another method of copying is used. No
/// copy may change the bytes around its piece.
#[test]
fn pieces_of_every_length_are_copied() {
    let text = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ".repeat(20);
    let lengths: Vec<usize> = if cfg!(miri) {
        vec![0, 1, 3, 7, 8, 15, 16, 31, 32, 1016] // The lengths at which another method of copying is used.
    } else {
        (0..=70).chain([1000, 1015, 1016, 1017, 1040]).collect()
    };
    for length in lengths {
        for room in [length, length.saturating_sub(1), 0] {
            let before = 1016_usize.saturating_sub(room);
            let piece = &text[..length];
            let of = |push: &dyn Fn(&mut NameWriter<'_>)| {
                let mut message = Message::new();
                let name = |writer: &mut NameWriter<'_>| {
                    writer.push_str(&"-".repeat(before));
                    push(writer);
                };
                message.encode(Kind::Begin, ProcessId::new(1234), None, Some(name));
                message.bytes().to_vec()
            };
            let plain =
                of(&|writer| ["(", piece, ")", piece].iter().for_each(|piece| writer.push_str(piece)));
            assert_eq!(of(&|writer| writer.push_pieces(["(", piece, ")", piece])), plain, "{length} {room}");
            let formatted = |writer: &mut NameWriter<'_>| writer.push_fmt(format_args!("({piece}){piece}"));
            assert_eq!(of(&formatted), plain, "{length} {room}");
        }
    }
    let of = |name: &str| TextBuffer::default().write(|writer| writer.push_pieces([name, "\n|é"])).to_owned();
    assert_eq!(of("a"), "a\n|é", "as it is");
    assert_eq!(of(&"x".repeat(1020)), "x".repeat(1020) + "\n|");
    assert_eq!(of(&"x".repeat(2000)), "x".repeat(1023));
}

#[test]
fn integers_of_every_width_are_decimal() {
    let mut message = Message::new();
    let name = |writer: &mut NameWriter<'_>| {
        writer.push_int(i128::MIN);
        writer.push_str(" ");
        writer.push_int(u128::MAX);
        writer.push_str(" ");
        writer.push_int(0_u8);
        writer.push_int(-1_isize);
    };
    message.encode(Kind::Begin, ProcessId::new(1), None, Some(name));
    assert_eq!(message.bytes(), format!("B|1|{} {} 0-1", i128::MIN, u128::MAX).as_bytes());
}

/// Checks a panic whose payload panics when the payload is dropped. The payload of this second panic would also panic
/// when dropped, so it is not dropped.
#[test]
#[cfg_attr(miri, ignore = "what is thrown last is left where it is, on purpose")]
fn what_is_thrown_may_throw_as_it_is_dropped() {
    struct Thrown {
        again: bool,
    }
    impl Drop for Thrown {
        fn drop(&mut self) {
            if self.again {
                std::panic::panic_any(Thrown { again: false });
            }
            panic!("dropped");
        }
    }
    struct Throws;
    impl fmt::Display for Throws {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("so far")?;
            std::panic::panic_any(Thrown { again: true })
        }
    }
    let mut message = Message::new();
    let name = |writer: &mut NameWriter<'_>| {
        writer.push_fmt(format_args!("{Throws}"));
        writer.push_str(" goes on");
    };
    message.encode(Kind::Instant, ProcessId::new(1), None, Some(name));
    assert_eq!(message.bytes(), b"I|1|so far<panicked> goes on");
}
