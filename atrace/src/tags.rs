//! Tags: each tag names the part of the system to which an event belongs. Each tag is switched on and off separately.
//!
//! [`AtraceTag`] is both in this module and at the top of the crate. AOSP's `libatrace_rust` has it in both places, so
//! code that was written for `libatrace_rust` compiles with this crate.
//!
//! ```
//! use atrace::tags::AtraceTag;
//!
//! atrace::atrace_begin(AtraceTag::App, "load");
//! atrace::atrace_end(atrace::AtraceTag::App);
//! ```

use atrace_sys::bindings as c;
use bitflags::bitflags;

bitflags! {
    /// A set of tags. An event is written if at least one of its tags is enabled.
    ///
    /// The bits are those of libcutils (`cutils/trace.h`). A set may also contain bits for which this type has no
    /// constant. [`Always`](Self::Always) is enabled even if no tag was switched on, unless the property
    /// `debug.atrace.tags.enableflags` is not a number, the process has disabled tracing, or events go through
    /// libandroid; [`Never`](Self::Never) is never enabled. [`App`](Self::App) follows the properties
    /// `debug.atrace.app_*`. The property `debug.atrace.tags.enableflags` switches the other tags. If this property is
    /// not a number, no tag is enabled.
    ///
    /// # Examples
    ///
    /// ```
    /// use atrace::AtraceTag;
    ///
    /// let camera_hal = AtraceTag::Camera | AtraceTag::Hal;
    /// assert_eq!(camera_hal.bits(), 1 << 10 | 1 << 11);
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[allow(non_upper_case_globals)] // AOSP's names.
    pub struct AtraceTag: u64 {
        /// No tag. An event with this tag is never written.
        #[doc(alias = "ATRACE_TAG_NEVER")]
        const Never = c::ATRACE_TAG_NEVER;
        /// A tag whose events are written for ATrace even if no tag was switched on, if this process has a
        /// [sink](crate::sink()). [`AtraceTag`] lists the exceptions.
        #[doc(alias = "ATRACE_TAG_ALWAYS")]
        const Always = c::ATRACE_TAG_ALWAYS;
        /// Graphics.
        #[doc(alias = "ATRACE_TAG_GRAPHICS")]
        const Graphics = c::ATRACE_TAG_GRAPHICS;
        /// Input.
        #[doc(alias = "ATRACE_TAG_INPUT")]
        const Input = c::ATRACE_TAG_INPUT;
        /// View system.
        #[doc(alias = "ATRACE_TAG_VIEW")]
        const View = c::ATRACE_TAG_VIEW;
        /// WebView.
        #[doc(alias = "ATRACE_TAG_WEBVIEW")]
        const Webview = c::ATRACE_TAG_WEBVIEW;
        /// Window manager.
        #[doc(alias = "ATRACE_TAG_WINDOW_MANAGER")]
        const WindowManager = c::ATRACE_TAG_WINDOW_MANAGER;
        /// Activity manager.
        #[doc(alias = "ATRACE_TAG_ACTIVITY_MANAGER")]
        const ActivityManager = c::ATRACE_TAG_ACTIVITY_MANAGER;
        /// Sync manager.
        #[doc(alias = "ATRACE_TAG_SYNC_MANAGER")]
        const SyncManager = c::ATRACE_TAG_SYNC_MANAGER;
        /// Audio.
        #[doc(alias = "ATRACE_TAG_AUDIO")]
        const Audio = c::ATRACE_TAG_AUDIO;
        /// Video.
        #[doc(alias = "ATRACE_TAG_VIDEO")]
        const Video = c::ATRACE_TAG_VIDEO;
        /// Camera.
        #[doc(alias = "ATRACE_TAG_CAMERA")]
        const Camera = c::ATRACE_TAG_CAMERA;
        /// Hardware modules. Combine this tag with the tag of the hardware's purpose, such as [`Camera`](Self::Camera).
        #[doc(alias = "ATRACE_TAG_HAL")]
        const Hal = c::ATRACE_TAG_HAL;
        /// Programs. The tag is enabled in processes whose name matches a pattern of `debug.atrace.app_*`.
        #[doc(alias = "ATRACE_TAG_APP")]
        const App = c::ATRACE_TAG_APP;
        /// Resource loading.
        #[doc(alias = "ATRACE_TAG_RESOURCES")]
        const Resources = c::ATRACE_TAG_RESOURCES;
        /// Dalvik and ART.
        #[doc(alias = "ATRACE_TAG_DALVIK")]
        const Dalvik = c::ATRACE_TAG_DALVIK;
        /// RenderScript.
        #[doc(alias = "ATRACE_TAG_RS")]
        const Rs = c::ATRACE_TAG_RS;
        /// Bionic.
        #[doc(alias = "ATRACE_TAG_BIONIC")]
        const Bionic = c::ATRACE_TAG_BIONIC;
        /// Power management.
        #[doc(alias = "ATRACE_TAG_POWER")]
        const Power = c::ATRACE_TAG_POWER;
        /// Package manager.
        #[doc(alias = "ATRACE_TAG_PACKAGE_MANAGER")]
        const PackageManager = c::ATRACE_TAG_PACKAGE_MANAGER;
        /// System server.
        #[doc(alias = "ATRACE_TAG_SYSTEM_SERVER")]
        const SystemServer = c::ATRACE_TAG_SYSTEM_SERVER;
        /// Database.
        #[doc(alias = "ATRACE_TAG_DATABASE")]
        const Database = c::ATRACE_TAG_DATABASE;
        /// Network.
        #[doc(alias = "ATRACE_TAG_NETWORK")]
        const Network = c::ATRACE_TAG_NETWORK;
        /// ADB.
        #[doc(alias = "ATRACE_TAG_ADB")]
        const Adb = c::ATRACE_TAG_ADB;
        /// Vibrator.
        #[doc(alias = "ATRACE_TAG_VIBRATOR")]
        const Vibrator = c::ATRACE_TAG_VIBRATOR;
        /// AIDL calls.
        #[doc(alias = "ATRACE_TAG_AIDL")]
        const Aidl = c::ATRACE_TAG_AIDL;
        /// Neural networks.
        #[doc(alias = "ATRACE_TAG_NNAPI")]
        const Nnapi = c::ATRACE_TAG_NNAPI;
        /// Runtime resource overlays.
        #[doc(alias = "ATRACE_TAG_RRO")]
        const Rro = c::ATRACE_TAG_RRO;
        /// Thermal management.
        #[doc(alias = "ATRACE_TAG_THERMAL")]
        const Thermal = c::ATRACE_TAG_THERMAL;
        /// The highest tag.
        #[doc(alias = "ATRACE_TAG_LAST")]
        const Last = c::ATRACE_TAG_LAST;
        /// This is not a tag for events. [`atrace_get_enabled_tags`](crate::atrace_get_enabled_tags) returns it while
        /// tracing is disabled in this process.
        #[doc(alias = "ATRACE_TAG_NOT_READY")]
        const NotReady = c::ATRACE_TAG_NOT_READY;
        /// The bits of all tags.
        #[doc(alias = "ATRACE_TAG_VALID_MASK")]
        const ValidMask = c::ATRACE_TAG_VALID_MASK;
    }
}

// The build fails if the header gets a new tag, or tags that do not fit into the gate's word.
const _: () = assert!(AtraceTag::Thermal.bits() == c::ATRACE_TAG_LAST, "cutils/trace.h has new tags");
const _: () = assert!(c::ATRACE_TAG_VALID_MASK < 1 << 28, "the gate has 28 bits for tags");
