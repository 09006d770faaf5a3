//! Systems without ATrace: everything compiles, nothing is written.
//!
//! The types that only exist once something is on have no values here, so that the calls fold away.

use std::convert::Infallible;

pub(crate) mod gate {
    use super::Infallible;
    use crate::AtraceTag;

    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Glance(pub(super) Infallible);

    #[inline(always)]
    pub(crate) fn glance(_: AtraceTag) -> Option<Glance> {
        None
    }

    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Mask(());

    impl Mask {
        pub(crate) const fn of(_: AtraceTag) -> Self {
            Self(())
        }

        #[inline(always)]
        pub(crate) fn glance(self) -> Option<Glance> {
            None
        }
    }
}

pub(crate) mod refresh {
    use super::gate::Glance;
    use super::sink::Sink;
    use crate::AtraceTag;

    pub(crate) fn enabled(glance: Glance, _: AtraceTag) -> Option<&'static Sink> {
        match glance.0 {}
    }

    pub(crate) fn tags() -> AtraceTag {
        AtraceTag::empty()
    }

    pub(crate) fn set_enabled(_: bool) {}

    pub(crate) fn update() {}
}

pub(crate) mod message {
    //! Names of events, which are never written here.

    use std::fmt;

    use crate::panics::{PANICKED, is_caught};

    #[derive(Clone, Copy)]
    #[allow(dead_code, reason = "nothing is written, so nothing reads the numbers")]
    pub(crate) enum Kind {
        Begin,
        End,
        AsyncBegin(i32),
        AsyncEnd(i32),
        TrackBegin(i32),
        TrackEnd(i32),
        Instant,
        TrackInstant,
        Int(i32),
        Int64(i64),
    }

    /// Writes the name of an event straight into its message.
    ///
    /// On this system no message is made; only the fields of live spans are written, as text.
    #[derive(Debug)]
    pub struct NameWriter<'a> {
        text: &'a mut String,
        was_cut: bool,
    }

    const TEXT_MAX: usize = 1023;

    impl NameWriter<'_> {
        /// Appends `text`.
        pub fn push_str(&mut self, text: &str) {
            if !self.was_cut {
                let mut end = text.len().min(TEXT_MAX - self.text.len());
                self.was_cut = end < text.len();
                while !text.is_char_boundary(end) {
                    end -= 1; // 0 is a boundary.
                }
                self.text.push_str(&text[..end]);
            }
        }

        /// Appends an integer in decimal.
        pub fn push_int(&mut self, number: impl itoa::Integer) {
            self.push_str(itoa::Buffer::new().format(number));
        }

        /// Tells whether text was cut: nothing more will be written.
        pub fn is_full(&self) -> bool {
            self.was_cut || self.text.len() >= TEXT_MAX
        }

        /// Appends `value`'s text.
        pub fn push_fmt(&mut self, value: fmt::Arguments<'_>) {
            self.__catching(|writer| _ = fmt::Write::write_fmt(writer, value));
        }

        #[doc(hidden)]
        pub fn __catching(&mut self, format: impl FnOnce(&mut Self)) {
            if is_caught(|| format(self)) {
                self.push_str(PANICKED);
            }
        }

        #[doc(hidden)]
        pub fn __push_pieces<const N: usize>(&mut self, pieces: [&str; N]) {
            self.__push_what_fits(&pieces);
        }

        #[doc(hidden)]
        pub fn __push_what_fits(&mut self, pieces: &[&str]) {
            pieces.iter().for_each(|piece| self.push_str(piece));
        }

        #[doc(hidden)]
        pub fn __len(&self) -> usize {
            self.text.len()
        }
    }

    impl fmt::Write for NameWriter<'_> {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.push_str(text);
            if self.is_full() { Err(fmt::Error) } else { Ok(()) }
        }
    }

    #[doc(hidden)]
    pub fn __with_text<W, T>(
        write: impl FnOnce(&mut NameWriter<'_>) -> W,
        then: impl FnOnce(&str, W) -> T,
    ) -> T {
        let mut text = String::new();
        let written = write(&mut NameWriter { text: &mut text, was_cut: false });
        then(&text, written)
    }
}

pub(crate) mod sink {
    //! Where events go: nowhere.

    use std::fmt;

    use super::message::{Kind, NameWriter};

    #[derive(Debug)]
    pub(crate) struct Sink(());

    impl Sink {
        pub(crate) fn write(
            &self,
            _kind: Kind,
            _track: Option<&str>,
            _name: Option<impl FnOnce(&mut NameWriter<'_>)>,
        ) -> bool {
            false
        }
    }

    pub(crate) mod choice {
        use super::{Sink, SinkInfo};

        static NOWHERE: Sink = Sink(());

        pub(crate) fn present() -> &'static Sink {
            &NOWHERE
        }

        /// Tells where this process' events go.
        pub fn sink() -> SinkInfo {
            SinkInfo(())
        }
    }

    /// Where this process' events go.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum SinkKind {
        /// Nowhere: tracing is off in this process.
        None,
    }

    /// Where this process' events go, and why.
    #[derive(Clone, Debug)]
    pub struct SinkInfo(());

    impl SinkInfo {
        /// The kind of place.
        pub fn kind(&self) -> SinkKind {
            SinkKind::None
        }

        /// How many events were lost because writing them failed.
        pub fn dropped(&self) -> u64 {
            0
        }
    }

    impl fmt::Display for SinkInfo {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("nowhere: this system has no ATrace")
        }
    }
}

pub mod watch {
    //! Being told when the enabled tags change: never, on this system.

    use std::io;

    use crate::AtraceTag;

    /// Keeps a callback registered; dropping it ends the watch.
    #[derive(Debug)]
    #[must_use = "the watch ends when this is dropped"]
    pub struct Watch(());

    impl Drop for Watch {
        fn drop(&mut self) {}
    }

    impl Watch {
        /// Returns the tags that the callbacks know of: none.
        pub fn tags(&self) -> AtraceTag {
            AtraceTag::empty()
        }
    }

    /// Tells whether the calling thread is one that a watch started: none ever is.
    pub fn on_watching_thread() -> bool {
        false
    }

    /// Would call `callback` each time the enabled tags change, which they don't.
    ///
    /// # Errors
    ///
    /// None on this system.
    pub fn watch(_callback: impl Fn(AtraceTag) + Send + Sync + 'static) -> io::Result<Watch> {
        Ok(Watch(()))
    }

    /// As [`watch`].
    ///
    /// # Errors
    ///
    /// None on this system.
    pub fn watch_without_descriptors(
        _callback: impl Fn(AtraceTag) + Send + Sync + 'static,
    ) -> io::Result<Watch> {
        Ok(Watch(()))
    }

    pub(crate) fn tags_may_have_changed() {}
}

pub mod control {
    //! Switching tracing on and off: this system has no properties to do it with.

    use std::fmt;
    use std::path::Path;
    use std::time::Duration;

    use super::Infallible;
    use crate::AtraceTag;

    /// Why a switch failed.
    #[derive(Debug)]
    pub struct Error(());

    impl fmt::Display for Error {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("this system has no ATrace")
        }
    }

    impl std::error::Error for Error {}

    /// The properties to switch: there are none.
    #[derive(Clone, Debug)]
    pub struct Control(Infallible);

    /// One property that was set.
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct Change {
        /// The property.
        pub key: String,
        /// Its value before.
        pub before: String,
        /// Its value now.
        pub after: String,
    }

    /// What a switch wrote.
    #[derive(Debug)]
    pub struct Switched(Infallible);

    /// The functions of a type without values.
    macro_rules! never {
        ($($(#[$doc:meta])* fn $name:ident($this:ident: $of:ty $(, $argument:ident: $type:ty)*) -> $result:ty;)*) => {
            $($(#[$doc])* #[allow(clippy::missing_errors_doc)]
            pub fn $name($this: $of $(, $argument: $type)*) -> $result {
                match $this.0 {}
            })*
        };
    }

    impl Control {
        /// Fails: there are no properties.
        ///
        /// # Errors
        ///
        /// Always.
        pub fn open() -> Result<Self, Error> {
            Err(Error(()))
        }

        /// Fails: there are no properties.
        ///
        /// # Errors
        ///
        /// Always.
        pub fn open_user(_uid: u32) -> Result<Self, Error> {
            Err(Error(()))
        }

        /// Fails: there are no properties.
        ///
        /// # Errors
        ///
        /// Always.
        pub fn open_path(_path: &Path) -> Result<Self, Error> {
            Err(Error(()))
        }

        /// Fails: there are no properties.
        ///
        /// # Errors
        ///
        /// Always.
        pub fn open_existing(_path: &Path) -> Result<Self, Error> {
            Err(Error(()))
        }

        never! {
            /// Never called.
            fn patience(self: Self, _patience: Duration) -> Self;
            /// Never called.
            fn patterns(self: &Self) -> Vec<String>;
            /// Never called.
            fn tags(self: &Self) -> AtraceTag;
            /// Never called.
            fn enable_this_process(self: &Self) -> Result<Switched, Error>;
            /// Never called.
            fn enable(self: &Self, _pattern: &str) -> Result<Switched, Error>;
            /// Never called.
            fn disable_this_process(self: &Self) -> Result<Switched, Error>;
            /// Never called.
            fn disable(self: &Self, _pattern: &str) -> Result<Switched, Error>;
            /// Never called.
            fn enable_once(self: &Self, _pattern: &str, _beside: usize) -> Result<Switched, Error>;
            /// Never called.
            fn disable_once(self: &Self, _pattern: &str) -> Result<Switched, Error>;
            /// Never called.
            fn enable_tags(self: &Self, _tags: AtraceTag) -> Result<Switched, Error>;
            /// Never called.
            fn disable_tags(self: &Self, _tags: AtraceTag) -> Result<Switched, Error>;
        }
    }

    impl Switched {
        never! {
            /// Never called.
            fn changes(self: &Self) -> &[Change];
            /// Never called.
            fn keep(self: Self) -> ();
            /// Never called.
            fn restore(self: Self) -> Result<(), Error>;
        }
    }

    impl fmt::Display for Switched {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self.0 {}
        }
    }
}
