//! The kernel's events of `atrace run --categories`, as packets for the service's trace.
//!
//! The trace also contains the messages that the program's processes write to the kernel's top-level marker, as C and
//! C++ programs do (Linux 6.16). In the trace, these messages are events `print`, from which Perfetto makes slices and
//! counters.

use std::path::Path;

use super::RunArgs;
use crate::command::buffer::{self, Copies, Names, Packets, Stream};
use crate::command::file::systrace::writer;
use crate::command::terminal::Result;

pub(super) struct Kernel {
    stream: Stream,
    copies: Option<Copies>,
    names: Names,
}

impl Kernel {
    /// Creates the buffers for the kernel events that `args` selects. Returns `None` if `args` selects no kernel
    /// events.
    pub(super) fn make(args: &RunArgs) -> Result<Option<Self>> {
        if args.categories.is_empty() {
            return Ok(None);
        }
        buffer::sweep()?;
        let stream = Stream::make(&args.categories, args.buffer)?;
        Ok(Some(Self { stream, copies: Copies::make(args.buffer)?, names: Names::make()? }))
    }

    /// Returns the path of the buffer in which the names of the program's processes are recorded. The process that
    /// executes the program gets this path as an argument.
    pub(super) fn names(&self) -> Option<&Path> {
        self.names.directory()
    }

    /// Starts to record messages to the top-level marker. Returns packets with the names of the processes that exist
    /// now.
    pub(super) fn start(&mut self) -> Result<Packets> {
        self.copies.iter_mut().try_for_each(Copies::start)?;
        Ok(buffer::names())
    }

    /// Returns packets with the kernel events that have arrived since the last call.
    pub(super) fn take(&mut self) -> Result<Packets> {
        self.copies.iter_mut().for_each(Copies::look);
        self.stream.take()
    }

    /// Ends the recording. Passes to `add` packets with the remaining events, and with the program's messages to the
    /// top-level marker. If a step fails, the function still reads the remaining events before it returns the error.
    pub(super) fn end(&mut self, mut add: impl FnMut(Packets)) -> Result {
        let stopped = self.copies.iter_mut().try_for_each(Copies::stop);
        let ended = self.stream.end(&mut add);
        let mut copied = Ok(());
        if let Some(copies) = self.copies.as_ref().filter(|_| stopped.is_ok()) {
            let processes = self.names.read();
            let is_its = |text: &[u8]| writer(text).is_none_or(|process| processes.has(process));
            copied = buffer::messages(copies.instance(), is_its).map(add);
            copies.report(&processes);
        }
        stopped.and(ended).and(copied)
    }

    /// Removes the buffers. Returns a line with the number of events. `is_whole` means that all packets were stored in
    /// the trace.
    pub(super) fn finish(self, is_whole: bool) -> Result<String> {
        self.copies.map_or(Ok(()), |copies| buffer::remove(copies.into_instance()))?;
        self.stream.finish(is_whole)
    }
}
