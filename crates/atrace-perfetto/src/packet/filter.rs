//! Removes the parts of an event that a session's filters exclude.

use atrace_sys::text::cut;

use crate::args::{FLOW_ROOM, TRACK_NAME_MAX};
use crate::callsite::Site;
use crate::event::{Event, Type};
use crate::options::{NO_ARGUMENTS, NO_NAMES};
use crate::proto::{Reader, Writer};

/// The text that replaces a name that a filter excludes, as in Perfetto's SDK.
const FILTERED: &str = "FILTERED";
/// The number of bytes by which a filtered event may be longer than the original event: for the replaced names
/// of the event and its track, and for the numbers of its callsite, which take the place of arguments.
pub(crate) const FILTERED_ROOM: usize = 2 * FILTERED.len() + SITE_ROOM;
/// The room for the two numbers of a callsite, in bytes.
const SITE_ROOM: usize = 8;
/// The maximum number of flows that remain in an event whose arguments were removed.
const FLOWS: usize = 32;
/// The size of the buffer for the arguments that remain in an event whose other arguments were removed, in bytes.
pub(crate) const KEPT_MAX: usize = SITE_ROOM + FLOWS * FLOW_ROOM;

/// Removes or replaces the parts of the event that a session with these filters must not get. `kept` is a buffer for
/// the encoded fields that replace the arguments.
///
/// If the session excludes arguments, only flows (arrows to other events) remain: at most [`FLOWS`] of the flows in
/// [`Event::args`]. The level of a callsite counts as an argument. If the callsite has no number, its target and source
/// location are left out, too.
#[inline(never)]
pub(crate) fn filter<'a>(event: &mut Event<'a>, filters: u32, kept: &'a mut [u8; KEPT_MAX]) {
    if filters & NO_NAMES != 0 {
        // The track of an async slice has the slice's name, so this name is replaced, too. For an end, no track is
        // described, so nothing has to be replaced.
        if let Some(track) = &mut event.track
            && event.name.is_some_and(|name| cut(name, TRACK_NAME_MAX) == track.name)
        {
            track.name = FILTERED;
        }
        event.name = event.name.map(|_| FILTERED);
    }
    if filters & NO_ARGUMENTS != 0 {
        let mut writer = Writer::new(kept);
        if let Some(site) = event.site.filter(|site| site.about.is_some()) {
            if site.has_number() && event.kind != Type::End {
                // Fields: category_iids, source_location_iid
                writer.number(3, site.number.into()).number(34, site.number.into());
            }
            event.site = Some(Site { about: None, level: 0, ..site });
        }
        for (_, flow) in Reader::new(event.args).filter(|(field, _)| *field == 47).take(FLOWS) {
            writer.fixed64(47, flow.number());
        }
        event.args = writer.finish().unwrap_or_default();
    }
}
