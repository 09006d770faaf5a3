// SPDX-License-Identifier: Apache-2.0

// Stands in for the libcutils of one Android version: ANDROID is its API level. Its functions print what the real
// library would write. Tracing is always on.

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

// A single write, which allocates nothing.
#define SAY(...) ({ \
    char line[4096]; \
    int length = snprintf(line, sizeof line - 1, "CALL " __VA_ARGS__); \
    line[length] = '\n'; \
    (void)!write(1, line, length + 1); \
})

uint64_t atrace_enabled_tags = 0x1001;
// The value that it reads, and the function that it calls between reading and storing. Tests set both.
uint64_t standin_tags = 0x1001;
void (*standin_within)(void) = 0;
static bool is_enabled = true;

void atrace_setup(void) {}
void atrace_update_tags(void) {
    uint64_t tags = is_enabled ? standin_tags : UINT64_C(1) << 63;
    if (standin_within) standin_within();
    SAY("update_tags");
    atrace_enabled_tags = tags;
}
void atrace_set_tracing_enabled(bool enabled) {
    is_enabled = enabled;
    atrace_update_tags();
}

void atrace_begin_body(const char* name) { SAY("B|%s", name); }
void atrace_async_begin_body(const char* name, int32_t cookie) { SAY("S|%s|%d", name, cookie); }
void atrace_async_end_body(const char* name, int32_t cookie) { SAY("F|%s|%d", name, cookie); }
void atrace_int_body(const char* name, int32_t value) { SAY("C|%s|%d", name, value); }
void atrace_int64_body(const char* name, int64_t value) { SAY("C|%s|%lld", name, (long long)value); }

#if ANDROID >= 26
void atrace_end_body(void) { SAY("E"); }
#endif

#if ANDROID >= 33
void atrace_init(void) {}
void atrace_instant_body(const char* name) { SAY("I|%s", name); }
void atrace_instant_for_track_body(const char* track, const char* name) { SAY("N|%s|%s", track, name); }
void atrace_async_for_track_begin_body(const char* track, const char* name, int32_t cookie) {
    SAY("G|%s|%s|%d", track, name, cookie);
}
#endif

#if ANDROID == 33
// A separator is written only after a track.
void atrace_async_for_track_end_body(const char* track, const char* name, int32_t cookie) {
    SAY("H|%s%s%s|%d", track, *track ? "|" : "", name, cookie);
}
#elif ANDROID > 33
void atrace_async_for_track_end_body(const char* track, int32_t cookie) { SAY("H|%s|%d", track, cookie); }
#endif
