//! libcutils as a sink: the library's functions write events, and the library's mask of tags holds the enabled tags.
//!
//! An old libcutils lacks functions. Events for which it has no function are written to the marker, in libcutils'
//! format, if the marker can be opened.

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
    /// The marker. Events for which this libcutils has no function are written to the marker.
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

    /// Makes the library read the enabled tags again until its mask is up to date for the serial that `now` returns.
    /// Without this call, the library would not notice a property that is created only after the library has looked for
    /// it. Returns the second value that `now` returned with that serial, or `None` if the mask may still be out of
    /// date.
    pub(crate) fn follow<T>(&self, now: impl Fn() -> (u32, T)) -> Option<T> {
        self.reload.follow(generation().number(), now, || {
            self.library.init();
            self.library.update_tags();
        })
    }

    /// Calls `read`, which must make the library read the enabled tags, and then marks the library's mask as out of
    /// date.
    pub(crate) fn reload(&self, read: impl Fn(&Cutils)) {
        self.reload.force(generation().number(), || read(&self.library));
    }

    /// Returns whether the library's mask is up to date for the serial of the last call of [`follow`](Self::follow).
    pub(super) fn is_current(&self) -> bool {
        self.reload.is_current()
    }

    #[inline(never)]
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
            Kind::Int64(_) | Kind::Float(_) => library.int64(name, kind.number().unwrap_or_default()),
        };
        // If this libcutils is too old to have the function, the message is written to the marker, in libcutils'
        // format.
        written || self.marker.as_ref().is_some_and(|marker| marker.write(message.restore(texts, length)))
    }
}
