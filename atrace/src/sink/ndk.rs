//! libandroid as a sink: the library's functions write events and return whether tracing is enabled. An app may load
//! libandroid, but not libcutils.

use std::ffi::OsStr;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use atrace_sys::ndk::Ndk;
use atrace_sys::process::ErrnoGuard;
use atrace_sys::properties::Properties;

use super::debounce::Debounce;
use super::open::{self, Failure};
use crate::message::{Kind, Message, Texts};

#[derive(Debug)]
pub(crate) struct NdkSink {
    library: Ndk,
    /// The properties. If the serial of the property `debug.atrace.tags.enableflags` has changed, or the library's last
    /// answer is not [settled](Self::ask), the library must be asked again whether tracing is enabled.
    pub(super) properties: &'static Properties,
    debounce: Debounce,
    loaded: Instant,
}

impl NdkSink {
    pub(super) fn load(path: Option<&OsStr>) -> Result<Self, Failure> {
        let library = Ndk::load(path).map_err(|reason| Failure::lasting(&reason))?;
        let properties = open::properties()?;
        Ok(Self { library, properties, debounce: Debounce(AtomicU64::new(0)), loaded: Instant::now() })
    }

    /// Asks the library whether tracing is enabled. Returns its answer, and whether this answer can be used
    /// until the serial changes (it is *settled*).
    pub(crate) fn ask(&self, serial: u32) -> (bool, bool) {
        self.debounce.ask(serial, || self.loaded.elapsed(), || self.library.is_enabled())
    }

    pub(super) fn is_settled(&self) -> bool {
        self.debounce.is_settled()
    }

    /// Writes the event by the function of the library that is the nearest to the event's kind. Returns false if this
    /// libandroid is too old to have such a function.
    ///
    /// An instant becomes a slice without duration. A slice on a track becomes an async slice with the name of the
    /// track, because a message that ends a slice on a track contains the name of the track, but not the name of the
    /// slice.
    #[inline(never)]
    pub(super) fn write(&self, kind: Kind, message: &mut Message, texts: Texts) -> bool {
        let _errno = ErrnoGuard::new();
        let library = &self.library;
        let (track, name) = message.c_strings(texts);
        match kind {
            Kind::Begin => library.begin(name),
            Kind::End => library.end(),
            Kind::Instant | Kind::TrackInstant => {
                library.begin(name);
                library.end();
            }
            Kind::AsyncBegin(cookie) => return library.async_begin(name, cookie as i32),
            Kind::AsyncEnd(cookie) => return library.async_end(name, cookie as i32),
            Kind::TrackBegin(cookie) => return library.async_begin(track, cookie as i32),
            Kind::TrackEnd(cookie) => return library.async_end(track, cookie as i32),
            Kind::Int(_) | Kind::Int64(_) | Kind::Float(_) => {
                return library.counter(name, kind.number().unwrap_or_default());
            }
        }
        true
    }
}
