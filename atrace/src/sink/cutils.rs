//! libcutils as a sink: its functions are called, and its mask says what is enabled.

use std::ffi::OsStr;
use std::sync::atomic::AtomicU64;

use atrace_sys::cutils::Cutils;
use atrace_sys::fork::generation;
use atrace_sys::marker::Marker;
use atrace_sys::process::ErrnoGuard;
use atrace_sys::properties::Properties;

use super::open::{self, Failure};
use super::reload::Reload;
use crate::message::{Kind, Message, Texts};

#[derive(Debug)]
pub(crate) struct CutilsSink {
    pub(crate) library: Cutils,
    /// For the events that this libcutils has no function for.
    pub(super) marker: Option<Marker>,
    pub(super) properties: Option<&'static Properties>,
    reload: Reload,
}

impl CutilsSink {
    pub(super) fn load(path: Option<&OsStr>) -> Result<Self, Failure> {
        let library = Cutils::load(path).map_err(|reason| Failure::lasting(&reason))?;
        let properties = open::if_there(open::properties(), "ATRACE_PROPERTIES")?;
        let library = library.for_api_level(properties.and_then(Properties::api_level));
        let marker = open::if_there(open::marker(), "ATRACE_MARKER")?;
        library.init();
        Ok(Self { library, marker, properties, reload: Reload(AtomicU64::new(0)) })
    }

    /// Has the library read the flags until it has those of the serial of `now`: it would not notice by itself a
    /// property that appeared late. Returns what came with that serial; None where that can't be made sure.
    pub(crate) fn follow<T>(&self, now: impl Fn() -> (u32, T)) -> Option<T> {
        self.reload.follow(generation().number(), now, || {
            self.library.init();
            self.library.update_tags();
        })
    }

    /// Calls a function of the library that has it read its tags.
    pub(crate) fn reload(&self, read: impl Fn(&Cutils)) {
        self.reload.force(generation().number(), || read(&self.library));
    }

    /// Tells whether the library has read the flags of the serial followed last.
    pub(super) fn is_current(&self) -> bool {
        self.reload.is_current()
    }

    pub(super) fn write(&self, kind: Kind, message: &mut Message, texts: Texts) -> bool {
        let _errno = ErrnoGuard::new();
        let library = &self.library;
        let length = message.bytes().len();
        let (track, name) = message.c_strings(texts);
        let written = match kind {
            Kind::Begin => library.begin(name),
            Kind::End => library.end(),
            Kind::AsyncBegin(cookie) => library.async_begin(name, cookie as i32),
            Kind::AsyncEnd(cookie) => library.async_end(name, cookie as i32),
            Kind::TrackBegin(cookie) => library.async_for_track_begin(track, name, cookie as i32),
            Kind::TrackEnd(cookie) => library.async_for_track_end(track, cookie as i32),
            Kind::Instant => library.instant(name),
            Kind::TrackInstant => library.instant_for_track(track, name),
            Kind::Int(value) => library.int(name, value as i32),
            Kind::Int64(value) => library.int64(name, value),
        };
        // A libcutils too old to have the function: the message itself, in libcutils' form.
        written || self.marker.as_ref().is_some_and(|marker| marker.write(message.restore(texts, length)))
    }
}
