//! The messages on the service's sockets: frames, each of which contains a request or a reply.
//!
//! A frame is a length (u32, little endian) and an `IPCFrame`. A client binds a service by name; the reply contains the
//! numbers of the service's methods. Then the client invokes methods by their numbers. A reply contains the number of
//! its request. A method may reply several times to one request.
//!
//! Source of the field numbers: Perfetto's `wire_protocol.proto`, `producer_port.proto`, `commit_data_request.proto`.

use super::proto::{Reader, Writer};

/// The maximum size of a frame, in bytes. A longer frame ends the connection.
pub const FRAME_MAX: usize = 128 << 10;
/// The size of the length before a frame, in bytes.
pub const PREFIX: usize = 4;

/// Writes a frame with its length. Returns `None` if the frame does not fit.
fn frame(bytes: &mut [u8], request: u64, body: impl FnOnce(&mut Writer<'_>)) -> Option<&[u8]> {
    let (prefix, rest) = bytes.split_at_mut_checked(PREFIX)?;
    let mut writer = Writer::new(rest);
    body(writer.number(2, request));
    let len = writer.finish()?.len();
    prefix.copy_from_slice(&u32::try_from(len).ok()?.to_le_bytes());
    bytes.get(..PREFIX + len)
}

/// Writes a request that binds a service by its name. Returns `None` if the request does not fit.
#[inline(never)]
pub fn bind<'a>(bytes: &'a mut [u8], request: u64, service: &str) -> Option<&'a [u8]> {
    frame(bytes, request, |frame| {
        frame.message(3, |bind| {
            bind.bytes(1, service.as_bytes());
        });
    })
}

/// A method, as the service's reply to [`bind`] identifies it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Method {
    /// The number of the service.
    pub service: u32,
    /// The number of the method within the service.
    pub method: u32,
}

/// Writes a request that invokes a method. If `wants_reply` is false, the request asks the service to send no reply.
///
/// Returns `None` if the request does not fit.
pub fn invoke(
    bytes: &mut [u8],
    request: u64,
    method: Method,
    wants_reply: bool,
    arguments: impl FnOnce(&mut Writer<'_>),
) -> Option<&[u8]> {
    frame(bytes, request, |frame| {
        frame.message(5, |invoke| {
            invoke.number(1, method.service.into()).number(2, method.method.into());
            invoke.message(3, arguments);
            if !wants_reply {
                invoke.number(4, 1);
            }
        });
    })
}

/// Writes a service's reply to [`bind`]: the names of its methods, with numbers from 1 on. Returns `None` if the reply
/// does not fit.
pub fn bound<'a>(bytes: &'a mut [u8], request: u64, methods: &[&str]) -> Option<&'a [u8]> {
    frame(bytes, request, |frame| {
        frame.message(4, |bound| {
            bound.number(1, 1).number(2, 1);
            for (id, name) in (1..).zip(methods) {
                bound.message(3, |method| {
                    method.number(1, id).bytes(2, name.as_bytes());
                });
            }
        });
    })
}

/// Writes a service's reply to a request. `reply` is `None` if the request failed. Returns `None` if the reply does
/// not fit.
pub fn reply_to(
    bytes: &mut [u8],
    request: u64,
    has_more: bool,
    reply: Option<impl FnOnce(&mut Writer<'_>)>,
) -> Option<&[u8]> {
    frame(bytes, request, |frame| {
        frame.message(6, |message| {
            message.number(1, reply.is_some().into()).number(2, has_more.into());
            if let Some(reply) = reply {
                message.message(3, reply);
            }
        });
    })
}

/// A received frame. If it contains the arguments or the reply of a method, these are not parsed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The number of the request. A reply has the number of the request that it answers.
    pub request: u64,
    /// The content of the frame.
    pub body: Body<'a>,
}

/// The content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// For a client: the encoded methods of the service that the client has bound. [`methods`] parses them.
    Bound(&'a [u8]),
    /// For a client: a reply to a request.
    Reply {
        /// Whether the request succeeded.
        is_success: bool,
        /// Whether more replies to the same request follow.
        has_more: bool,
        /// The encoded reply of the method.
        reply: &'a [u8],
    },
    /// For a service: a request to bind, with the name of the service that the client wants.
    Bind(&'a [u8]),
    /// For a service: a request that invokes a method.
    Invoke {
        /// The method that the client invokes.
        method: Method,
        /// Whether the client waits for a reply.
        wants_reply: bool,
        /// The encoded arguments of the method.
        arguments: &'a [u8],
    },
    /// An error message, or a kind of frame that this module does not know.
    Other,
}

/// Splits the first frame off the received bytes. Returns the frame, and the total size of the frame and of the length
/// before it, in bytes. Returns `Ok(None)` if the frame is not complete.
///
/// # Errors
///
/// Returns an error if the frame is larger than [`FRAME_MAX`] or is not a valid message.
#[inline(never)]
pub fn split(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, Malformed> {
    let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX>() else { return Ok(None) };
    let len = u32::from_le_bytes(*prefix) as usize;
    if len > FRAME_MAX {
        return Err(Malformed);
    }
    let Some(message) = rest.get(..len) else { return Ok(None) };
    Ok(Some((Frame::read(message)?, PREFIX + len)))
}

/// The error of a message that violates the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// The values of those fields of a message that have the numbers 0 to 7. This module needs no other fields of the
/// protocol's messages. If a field is repeated, its last value counts.
struct Fields<'a> {
    numbers: [u64; 8],
    bytes: [&'a [u8]; 8],
    /// One bit for each field that is present.
    present: u32,
    is_whole: bool,
}

impl<'a> Fields<'a> {
    #[inline(never)]
    fn of(message: &'a [u8]) -> Self {
        let mut fields = Self { numbers: [0; 8], bytes: [&[]; 8], present: 0, is_whole: false };
        let mut reader = Reader::new(message);
        for (field, value) in &mut reader {
            let at = field as usize;
            if let (Some(number), Some(bytes)) = (fields.numbers.get_mut(at), fields.bytes.get_mut(at)) {
                (*number, *bytes) = (value.number(), value.bytes());
                fields.present |= 1 << field;
            }
        }
        fields.is_whole = reader.is_whole();
        fields
    }

    /// Reads the fields of a message. Returns an error if a field is invalid.
    fn of_whole(message: &'a [u8]) -> Result<Self, Malformed> {
        let fields = Self::of(message);
        if fields.is_whole { Ok(fields) } else { Err(Malformed) }
    }

    const fn has(&self, field: u32) -> bool {
        self.present >> field & 1 == 1
    }
}

impl<'a> Frame<'a> {
    #[inline(never)]
    fn read(message: &'a [u8]) -> Result<Self, Malformed> {
        let fields = Fields::of_whole(message)?;
        let body = if fields.has(6) {
            let reply = Fields::of_whole(fields.bytes[6])?;
            let (is_success, has_more) = (reply.numbers[1] != 0, reply.numbers[2] != 0);
            Body::Reply { is_success, has_more, reply: reply.bytes[3] }
        } else if fields.has(5) {
            let invocation = Fields::of_whole(fields.bytes[5])?;
            let number = |number: u64| u32::try_from(number).map_err(|_| Malformed);
            let [_, service, method, _, drops_reply, ..] = invocation.numbers;
            let method = Method { service: number(service)?, method: number(method)? };
            Body::Invoke { method, wants_reply: drops_reply == 0, arguments: invocation.bytes[3] }
        } else if fields.has(4) {
            Body::Bound(fields.bytes[4])
        } else if fields.has(3) {
            Body::Bind(Fields::of(fields.bytes[3]).bytes[1])
        } else {
            Body::Other
        };
        Ok(Self { request: fields.numbers[2], body })
    }
}

/// Returns the names and numbers of the methods of a service that was bound, or `None` if the service refused to be
/// bound.
pub fn methods(bound: &[u8]) -> Option<impl Iterator<Item = (&[u8], Method)>> {
    let fields = Fields::of(bound);
    if fields.numbers[1] == 0 {
        return None;
    }
    let service = fields.numbers[2] as u32;
    Some(Reader::new(bound).filter(|(field, _)| *field == 3).map(move |(_, value)| {
        let info = Fields::of(value.bytes());
        (info.bytes[2], Method { service, method: info.numbers[1] as u32 })
    }))
}

/// A command of the service to a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// The producer may use shared memory of the service, whose descriptor comes with this message.
    SetupTracing {
        /// The size of the memory's pages in bytes, or 0 if the producer's own memory is used.
        page_size: u64,
    },
    /// A session will use the data source.
    Setup {
        /// The number by which the service identifies the session.
        instance: u64,
    },
    /// A session starts.
    Start {
        /// The number by which the service identifies the session.
        instance: u64,
        /// The encoded `DataSourceConfig`.
        config: &'a [u8],
    },
    /// A session ends.
    Stop {
        /// The number by which the service identifies the session.
        instance: u64,
    },
    /// The producer must commit everything that was written so far.
    Flush {
        /// The number of the flush request, which the commit must repeat.
        request: u64,
    },
    /// The producer must write the incremental state of all sequences anew.
    ClearState,
    /// A command that this module does not know.
    Other,
}

impl<'a> Command<'a> {
    /// Reads a reply of `GetAsyncCommand`.
    ///
    /// # Errors
    ///
    /// Returns an error if the reply is not a valid message.
    pub fn read(reply: &'a [u8]) -> Result<Self, Malformed> {
        let mut command = Command::Other;
        let mut reader = Reader::new(reply);
        for (field, value) in &mut reader {
            let fields = Fields::of(value.bytes());
            let instance = fields.numbers[1];
            command = match field {
                1 => Command::Start { instance, config: fields.bytes[2] },
                2 => Command::Stop { instance },
                3 => Command::SetupTracing { page_size: instance.saturating_mul(1024) },
                5 => Command::Flush { request: fields.numbers[2] },
                6 => Command::Setup { instance },
                7 => Command::ClearState,
                _ => command,
            };
        }
        if reader.is_whole() { Ok(command) } else { Err(Malformed) }
    }
}

/// A chunk that the service should read. It is an entry of `CommitData`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkPlace {
    /// The index of the chunk's page.
    pub page: u32,
    /// The index of the chunk in the page.
    pub chunk: u32,
    /// The number by which the service identifies the buffer for the chunk's packets.
    pub buffer: u32,
}

impl ChunkPlace {
    /// Writes the entry for this chunk into a `CommitData`.
    pub fn write(self, commit: &mut Writer<'_>) {
        commit.message(1, |entry| {
            entry.number(1, self.page.into()).number(2, self.chunk.into()).number(3, self.buffer.into());
        });
    }

    /// Writes the entry for this chunk, with the chunk's bytes, for a service that can't read the memory. `is_open`
    /// means that the last packet in the chunk is unfinished.
    pub(crate) fn write_bytes(self, commit: &mut Writer<'_>, bytes: &[u8], is_open: bool) {
        commit.message(1, |entry| {
            // The entry has no page number, because services before v58 compare this number with memory of their own.
            entry.number(2, self.chunk.into()).number(3, self.buffer.into()).bytes(4, bytes);
            if is_open {
                entry.number(5, 1);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_split_where_they_end() {
        let mut bytes = [0; 256];
        let method = Method { service: 3, method: 7 };
        let moved = ChunkPlace { page: 127, chunk: 13, buffer: 70000 };
        let first = bind(&mut bytes, 1, "ProducerPort").unwrap().to_vec();
        let second = invoke(&mut bytes, 300, method, false, |arguments| moved.write(arguments)).unwrap();
        let both = [first.as_slice(), second].concat();
        for cut in 0..first.len() {
            assert_eq!(split(&both[..cut]), Ok(None), "{cut}");
        }
        let (frame, len) = split(&both).unwrap().unwrap();
        assert_eq!((frame.request, frame.body, len), (1, Body::Bind(b"ProducerPort"), first.len()));
        let (frame, _) = split(&both[len..]).unwrap().unwrap();
        let Body::Invoke { method: read, wants_reply: false, arguments } = frame.body else {
            panic!("{frame:?}")
        };
        assert_eq!((frame.request, read), (300, method));
        let entry = Reader::first(arguments, 1).unwrap().bytes();
        let numbers: Vec<_> = Reader::new(entry).map(|(_, value)| value.number()).collect();
        assert_eq!(numbers, [127, 13, 70000]);
        assert_eq!(split(&[0xff; 8]), Err(Malformed));
        assert_eq!(split(&[2, 0, 0, 0, 0x2a, 9]), Err(Malformed));
    }

    #[test]
    fn a_services_methods_are_found_by_name() {
        let mut bytes = [0; 128];
        let mut writer = Writer::new(&mut bytes);
        writer.number(1, 1).number(2, 4);
        for (id, name) in [(1, "InitializeConnection"), (2, "RegisterDataSource")] {
            writer.message(3, |method| {
                method.number(1, id).bytes(2, name.as_bytes());
            });
        }
        let bound = writer.finish().unwrap();
        let found: Vec<_> = methods(bound).unwrap().collect();
        assert_eq!(found[1], (&b"RegisterDataSource"[..], Method { service: 4, method: 2 }));
        assert!(methods(&bound[2..]).is_none());
    }

    #[test]
    fn commands_are_read() {
        let mut bytes = [0; 64];
        let mut writer = Writer::new(&mut bytes);
        writer.message(1, |start| {
            start.number(1, 9).bytes(2, b"\x10\x05");
        });
        let start = writer.finish().unwrap();
        assert_eq!(Command::read(start), Ok(Command::Start { instance: 9, config: b"\x10\x05" }));
        assert_eq!(Command::read(b"\x1a\x02\x08\x08"), Ok(Command::SetupTracing { page_size: 8192 }));
        assert_eq!(Command::read(b"\x2a\x04\x08\x01\x10\x07"), Ok(Command::Flush { request: 7 }));
        assert_eq!(Command::read(b"\xfa\x01\x00"), Ok(Command::Other));
        assert_eq!(Command::read(b"\x1a\x02\x08"), Err(Malformed));
    }
}
