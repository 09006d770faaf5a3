// SPDX-License-Identifier: Apache-2.0

// libcutils' C ABI for tracing, as C and C++ programs see it.
//
// A declaration of our own: a libcutils of any Android version can stand behind it, or the host's stand-in in
// cc-bench. Older versions lack some functions, so a program that is not built together with its libcutils must look
// them up at run time.
//
// The constants are plain shifts of 1ULL on purpose: 64 bits wide in C and C++, usable in #if, and readable for
// bindgen, which does not expand function-like macros such as UINT64_C.

#ifndef ATRACE_SYS_CUTILS_TRACE_H
#define ATRACE_SYS_CUTILS_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#define ATRACE_TAG_NEVER 0ULL
#define ATRACE_TAG_ALWAYS (1ULL << 0)
#define ATRACE_TAG_GRAPHICS (1ULL << 1)
#define ATRACE_TAG_INPUT (1ULL << 2)
#define ATRACE_TAG_VIEW (1ULL << 3)
#define ATRACE_TAG_WEBVIEW (1ULL << 4)
#define ATRACE_TAG_WINDOW_MANAGER (1ULL << 5)
#define ATRACE_TAG_ACTIVITY_MANAGER (1ULL << 6)
#define ATRACE_TAG_SYNC_MANAGER (1ULL << 7)
#define ATRACE_TAG_AUDIO (1ULL << 8)
#define ATRACE_TAG_VIDEO (1ULL << 9)
#define ATRACE_TAG_CAMERA (1ULL << 10)
#define ATRACE_TAG_HAL (1ULL << 11)
#define ATRACE_TAG_APP (1ULL << 12)
#define ATRACE_TAG_RESOURCES (1ULL << 13)
#define ATRACE_TAG_DALVIK (1ULL << 14)
#define ATRACE_TAG_RS (1ULL << 15)
#define ATRACE_TAG_BIONIC (1ULL << 16)
#define ATRACE_TAG_POWER (1ULL << 17)
#define ATRACE_TAG_PACKAGE_MANAGER (1ULL << 18)
#define ATRACE_TAG_SYSTEM_SERVER (1ULL << 19)
#define ATRACE_TAG_DATABASE (1ULL << 20)
#define ATRACE_TAG_NETWORK (1ULL << 21)
#define ATRACE_TAG_ADB (1ULL << 22)
#define ATRACE_TAG_VIBRATOR (1ULL << 23)
#define ATRACE_TAG_AIDL (1ULL << 24)
#define ATRACE_TAG_NNAPI (1ULL << 25)
#define ATRACE_TAG_RRO (1ULL << 26)
#define ATRACE_TAG_THERMAL (1ULL << 27)
#define ATRACE_TAG_LAST ATRACE_TAG_THERMAL

// Not a tag: the mask of a process that has not read the properties, or was told not to trace.
#define ATRACE_TAG_NOT_READY (1ULL << 63)

#define ATRACE_TAG_VALID_MASK ((ATRACE_TAG_LAST - 1) | ATRACE_TAG_LAST)

#ifdef __cplusplus
extern "C" {
#endif

/// Opens the marker at the first call, and reads the tags anew whenever the flags property has changed.
void atrace_init(void);

/// Does what `atrace_init` does, under the name that old programs call.
void atrace_setup(void);

/// Does what `atrace_init` does, then returns the enabled tags.
uint64_t atrace_get_enabled_tags(void);

/// Reads the tags anew, whether or not the flags property has changed.
void atrace_update_tags(void);

/// Stops this process from tracing (the mask becomes `ATRACE_TAG_NOT_READY`), or lets it trace again.
void atrace_set_tracing_enabled(bool enabled);

/// Writes `B|pid|name`, whatever the tags say, as all `_body` functions do.
void atrace_begin_body(const char* name);

/// Writes `E|pid`.
void atrace_end_body(void);

/// Writes `S|pid|name|cookie`.
void atrace_async_begin_body(const char* name, int32_t cookie);

/// Writes `F|pid|name|cookie`.
void atrace_async_end_body(const char* name, int32_t cookie);

/// Writes `G|pid|track|name|cookie`.
void atrace_async_for_track_begin_body(const char* track, const char* name, int32_t cookie);

/// Writes `H|pid|track|cookie`. Android 13's function of the same name takes a name between the track and
/// the cookie.
void atrace_async_for_track_end_body(const char* track, int32_t cookie);

/// Writes `I|pid|name`.
void atrace_instant_body(const char* name);

/// Writes `N|pid|track|name`.
void atrace_instant_for_track_body(const char* track, const char* name);

/// Writes `C|pid|name|value`.
void atrace_int_body(const char* name, int32_t value);

/// Writes `C|pid|name|value`.
void atrace_int64_body(const char* name, int64_t value);

// libcutils defines it as an atomic_bool, a type that C++ does not have in a C header; both are one byte.
/// Always false, so that old programs call `atrace_setup` at each event.
extern bool atrace_is_ready;

/// The enabled tags as they were last read, or `ATRACE_TAG_NOT_READY` before they were read for the first time.
extern uint64_t atrace_enabled_tags;

/// The descriptor to which messages are written, or -1 if there is none.
extern int atrace_marker_fd;

// What programs call: the tag is tested before any argument is looked at.

static inline uint64_t atrace_is_tag_enabled(uint64_t tag) {
    return atrace_get_enabled_tags() & tag;
}

// Tracing is off most of the time: lay out the code for that.
static inline bool atrace_sys_rarely_enabled(uint64_t tag) {
    return __builtin_expect(atrace_is_tag_enabled(tag) != 0, 0);
}

static inline void atrace_begin(uint64_t tag, const char* name) {
    if (atrace_sys_rarely_enabled(tag)) atrace_begin_body(name);
}

static inline void atrace_end(uint64_t tag) {
    if (atrace_sys_rarely_enabled(tag)) atrace_end_body();
}

static inline void atrace_async_begin(uint64_t tag, const char* name, int32_t cookie) {
    if (atrace_sys_rarely_enabled(tag)) atrace_async_begin_body(name, cookie);
}

static inline void atrace_async_end(uint64_t tag, const char* name, int32_t cookie) {
    if (atrace_sys_rarely_enabled(tag)) atrace_async_end_body(name, cookie);
}

static inline void atrace_async_for_track_begin(uint64_t tag, const char* track, const char* name, int32_t cookie) {
    if (atrace_sys_rarely_enabled(tag)) atrace_async_for_track_begin_body(track, name, cookie);
}

static inline void atrace_async_for_track_end(uint64_t tag, const char* track, int32_t cookie) {
    if (atrace_sys_rarely_enabled(tag)) atrace_async_for_track_end_body(track, cookie);
}

static inline void atrace_instant(uint64_t tag, const char* name) {
    if (atrace_sys_rarely_enabled(tag)) atrace_instant_body(name);
}

static inline void atrace_instant_for_track(uint64_t tag, const char* track, const char* name) {
    if (atrace_sys_rarely_enabled(tag)) atrace_instant_for_track_body(track, name);
}

static inline void atrace_int(uint64_t tag, const char* name, int32_t value) {
    if (atrace_sys_rarely_enabled(tag)) atrace_int_body(name, value);
}

static inline void atrace_int64(uint64_t tag, const char* name, int64_t value) {
    if (atrace_sys_rarely_enabled(tag)) atrace_int64_body(name, value);
}

#ifdef __cplusplus
}
#endif

#endif
