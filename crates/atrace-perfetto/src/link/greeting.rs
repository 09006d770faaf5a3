//! The greeting: learning the service's methods, agreeing on the shared memory, and registering the data source.
//!
//! The steps are: bind the service and learn its methods; `InitializeConnection` with a memory file;
//! `GetAsyncCommand`, whose replies are the service's commands; `RegisterDataSource`; `Sync`, whose reply comes after
//! all commands for sessions that already exist.

use std::ffi::OsStr;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;

use crate::abi;
use crate::memory::Arena;
use crate::proto::{Reader, Writer};
use crate::wire::{self, Body, Command};
use atrace_sys::process;

use super::connection::{COMMANDS, COMMIT, INITIALIZE, Link, METHODS, NEEDED, REGISTER, SYNC};
use crate::category;
use crate::early;
use crate::standing::Standing;
use crate::startup;

/// Returns the number of pages of the shared memory, from its size in KiB: by default 1 MiB, otherwise 64 KiB to 32
/// MiB. Pages that are never written cost nothing.
fn pages(kib: Option<&OsStr>) -> Option<u32> {
    let digit = |number: u32, byte: &u8| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(digit.into())
    };
    let kib = kib.map_or(Some(1024), |kib| kib.as_bytes().iter().try_fold(0, digit))?;
    (64..=32 << 10).contains(&kib).then_some(kib * 1024 / abi::PAGE as u32)
}

/// The maximum size of the arguments of a request in the greeting.
const ARGUMENTS_MAX: usize = 512;

impl Link {
    pub(super) fn introduce(&mut self) -> Result<(), Standing> {
        self.terms.request = 1;
        let frame = wire::bind(&mut self.outbox, self.terms.request, "ProducerPort");
        self.unsent = frame.ok_or(Standing::UNABLE)?.len();
        Ok(())
    }

    pub(super) fn handle(&mut self, request: u64, body: Body<'_>, say: fn(Standing)) -> Result<(), Standing> {
        match body {
            Body::Bound(bound) if self.terms.methods[COMMIT].method == 0 => {
                for (name, method) in wire::methods(bound).ok_or(Standing::UNABLE)? {
                    let place = METHODS.place(name);
                    if let Some(place) = place.and_then(|place| self.terms.methods.get_mut(place)) {
                        *place = method;
                    }
                }
                if self.terms.methods[..NEEDED].iter().any(|method| method.method == 0) {
                    return Err(Standing::UNABLE);
                }
                self.initialize()
            }
            Body::Reply { is_success, reply, .. } if request == self.terms.initialize => {
                if !is_success {
                    return Err(Standing::UNABLE);
                }
                let is_ours = Reader::first(reply, 1).is_some_and(|value| value.number() != 0);
                if !is_ours && let Some(arena) = self.arena.take() {
                    arena.give_back(); // SetupTracing will bring memory.
                }
                self.register()
            }
            Body::Reply { is_success: true, reply, .. } if request == self.terms.commands => {
                self.handle_command(Command::read(reply)?)
            }
            Body::Reply { .. } if request == self.terms.last && !self.terms.is_settled => {
                // The commands for sessions that already existed have come before this.
                self.terms.is_settled = true;
                startup::end(self.shared);
                say(Standing::CONNECTED);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the service has answered the greeting.
    pub(super) fn is_greeted(&self) -> bool {
        self.terms.commands != 0
    }

    fn initialize(&mut self) -> Result<(), Standing> {
        let pages = pages(self.environment.memory.as_deref()).ok_or(Standing::SIZE)?;
        let (arena, file) = Arena::make(pages).map_err(Standing::memory)?;
        self.use_arena(arena);
        self.terms.initialize = process::with_argv0(|name| {
            let name = name.map_or(&[][..], std::ffi::CStr::to_bytes);
            let size = u64::from(pages) * abi::PAGE as u64;
            let mut arguments = [0; ARGUMENTS_MAX];
            let mut writer = Writer::new(&mut arguments);
            writer.number(1, abi::PAGE as u64).number(2, size).bytes(3, &name[..name.len().min(255)]);
            // smb_scraping_mode: enabled; producer_provided_shmem; sdk_version
            writer.number(4, 1).number(6, 1);
            writer.bytes(8, concat!("atrace ", env!("CARGO_PKG_VERSION")).as_bytes());
            self.invoke(INITIALIZE, true, writer.finish())
        })?;
        self.send(Some(file.as_raw_fd()))
    }

    pub(super) fn use_arena(&mut self, arena: &'static Arena) {
        self.arena = Some(arena);
        early::set_arena(self.arena);
        early::publish(self.shared);
    }

    fn register(&mut self) -> Result<(), Standing> {
        self.terms.commands = self.invoke(COMMANDS, true, Some(&[]))?;
        let mut arguments = [0; ARGUMENTS_MAX];
        let mut writer = Writer::new(&mut arguments);
        writer.message(1, |source| {
            // will_notify_on_stop, will_notify_on_start, handles_incremental_state_clear
            source.bytes(1, b"track_event").number(2, 1).number(3, 1).number(4, 1);
            source.message(6, |categories| {
                for bit in 0..category::COUNT {
                    categories.message(1, |entry| {
                        entry.bytes(1, category::name(bit).as_bytes());
                    });
                }
            });
        });
        let registered = self.invoke(REGISTER, true, writer.finish())?;
        // A service before Android 11 has no Sync. It starts existing sessions while it registers the data source.
        self.terms.last = match self.invoke(SYNC, true, Some(&[]))? {
            0 => registered,
            sync => sync,
        };
        Ok(())
    }
}
