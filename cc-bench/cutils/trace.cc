// SPDX-License-Identifier: Apache-2.0

// The tracing functions of libcutils for hosts, whose libcutils does not trace.
//
// This code is a base of comparison, so it works like libcutils at the same cost and keeps libcutils' weaknesses: names
// are not escaped, a cut may split a UTF-8 character, and a flags property that did not exist at the first call is
// never noticed. Only the origins of the marker, of the properties and of the process id differ from libcutils
// (marker.h, properties.h, process.h).

#include <errno.h>
#include <fnmatch.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cinttypes>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

// The library exports only the names that the header declares.
#pragma GCC visibility push(default)
#include <cutils/trace.h>
#pragma GCC visibility pop

#include "log.h"
#include "marker.h"
#include "process.h"
#include "properties.h"

bool atrace_is_ready = false;
uint64_t atrace_enabled_tags = ATRACE_TAG_NOT_READY;
int atrace_marker_fd = -1;

namespace {

constexpr char kFlags[] = "debug.atrace.tags.enableflags";

// A serial that no property has. It means that the tags were never read.
constexpr uint32_t kNeverRead = UINT32_MAX;

// Stands for the flags property until the property is found. The first word of this constant is its serial, which stays
// 0.
alignas(8) constexpr char kNoProperty[96] = {};

const prop_info* flags_property = reinterpret_cast<const prop_info*>(kNoProperty);
std::atomic<uint32_t> last_serial{kNeverRead};
std::atomic<bool> may_trace{true};
pthread_mutex_t tags_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_once_t marker_once = PTHREAD_ONCE_INIT;

void set_tags(uint64_t tags) {
    // The mutex serializes writers; readers load the word without the mutex.
    pthread_mutex_lock(&tags_mutex);
    __atomic_store_n(&atrace_enabled_tags, tags, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&tags_mutex);
}

// Reads a property as a decimal, octal (0…) or hexadecimal (0x…) number, and ignores text after the number. Other text
// counts as 0.
int read_count(const char* key) {
    char value[kPropertyValueMax];
    if (__system_property_get(key, value) < 1) return 0;
    errno = 0;
    char* end = nullptr;
    const intmax_t number = strtoimax(value, &end, 0);
    if (end == value || errno == ERANGE || number < INT32_MIN || number > INT32_MAX) return 0;
    return static_cast<int>(number);
}

bool matches_a_pattern(const char* program) {
    const int count = read_count("debug.atrace.app_number");
    for (int i = 0; i < count; i++) {
        char key[32];
        char pattern[kPropertyValueMax];
        snprintf(key, sizeof(key), "debug.atrace.app_%d", i);
        __system_property_get(key, pattern);
        if (fnmatch(pattern, program, FNM_NOESCAPE) == 0) return true;
    }
    return false;
}

// Returns whether an app pattern matches this process's current argv[0]. argv[0] is read anew each time, because Zygote
// renames its children.
bool is_chosen_app() {
    FILE* file = fopen("/proc/self/cmdline", "re");
    if (file == nullptr) {
        log_error("/proc/self/cmdline can't be opened: %s", strerror(errno));
        return false;
    }
    // Reads at most one line; the string ends at the NUL after argv[0].
    char program[4096];
    const bool chosen = fgets(program, sizeof(program), file) != nullptr && matches_a_pattern(program);
    fclose(file);
    return chosen;
}

uint64_t read_tags() {
    char value[kPropertyValueMax];
    if (__system_property_get(kFlags, value) < 1) strcpy(value, "0");
    errno = 0;
    char* end = nullptr;
    uint64_t tags = strtoull(value, &end, 0);
    if (*end != '\0') {
        log_error("%s=%s is not a number", kFlags, value);
        return 0;
    }
    if (errno == ERANGE || tags == ULLONG_MAX) {
        log_error("%s=%s is too large", kFlags, value);
        return 0;
    }
    // The flags property does not control the tag APP.
    tags = is_chosen_app() ? tags | ATRACE_TAG_APP : tags & ~ATRACE_TAG_APP;
    return (tags | ATRACE_TAG_ALWAYS) & ATRACE_TAG_VALID_MASK;
}

void open_once() {
    atrace_marker_fd = open_marker();
}

[[gnu::noinline]] void serial_changed(uint32_t before, uint32_t now) {
    if (!may_trace.load(std::memory_order_acquire)) return;
    // The first thread that gets here reads the tags for all threads.
    uint32_t expected = before;
    if (!last_serial.compare_exchange_strong(expected, now)) return;
    if (before == kNeverRead) {
        const prop_info* found = __system_property_find(kFlags);
        if (found != nullptr) flags_property = found;
        pthread_once(&marker_once, open_once);
    }
    // The tags are updated even without a marker: like libcutils, this code then counts as enabled and writes to
    // descriptor -1.
    atrace_update_tags();
}

}  // namespace

void atrace_init(void) {
    const uint32_t now = __system_property_serial(flags_property);
    const uint32_t before = last_serial.load(std::memory_order_relaxed);
    if (__builtin_expect(now != before, 0)) serial_changed(before, now);
}

void atrace_setup(void) {
    atrace_init();
}

uint64_t atrace_get_enabled_tags(void) {
    atrace_init();
    return __atomic_load_n(&atrace_enabled_tags, __ATOMIC_RELAXED);
}

void atrace_update_tags(void) {
    set_tags(may_trace.load(std::memory_order_acquire) ? read_tags() : ATRACE_TAG_NOT_READY);
}

void atrace_set_tracing_enabled(bool enabled) {
    may_trace.store(enabled, std::memory_order_release);
    atrace_update_tags();
}

namespace {

// The maximum size of one message in bytes, including the NUL that snprintf adds.
constexpr int kBufferSize = 1024;

// The printf formats of one kind of message. All formats take the pid, the track, the name and a value, with "" for a
// missing part, and all but `track_cut` take a separator. They have as many conversions as libcutils' formats.
struct Formats {
    const char* whole;
    // The format that takes the maximum length of the name before the name.
    const char* name_cut;
    // The format that takes the maximum length of the track before the track, and writes one byte of the name.
    const char* track_cut;
};

#define FORMATS(letter, value) \
    Formats { letter "%s%s%s" value, letter "%s%s%.*s" value, letter "%.*s|%.1s" value }

// Inlined, so that each format is a compile-time constant.
template <typename Value>
[[gnu::always_inline]] inline void write_message(Formats formats, const char* track, const char* name, Value value) {
    char buffer[kBufferSize];
    const char* separator = track[0] != '\0' ? "|" : "";
    const int pid = cached_getpid();
    int length = snprintf(buffer, sizeof(buffer), formats.whole, pid, track, separator, name, value);
    if (length >= kBufferSize) {
        const int excess = length - (kBufferSize - 1);
        const int name_length = static_cast<int>(strlen(name));
        // The name is cut first. If that is not enough, one byte of the name remains, and the track is cut.
        const int name_kept = name_length - excess;
        const int track_kept = static_cast<int>(strlen(track)) - (excess - (name_length - 1));
        if (name_kept > 0) {
            length =
                snprintf(buffer, sizeof(buffer), formats.name_cut, pid, track, separator, name_kept, name, value);
        } else if (track[0] != '\0' && track_kept > 0) {
            length = snprintf(buffer, sizeof(buffer), formats.track_cut, pid, track_kept, track, name, value);
        } else {
            return;
        }
    }
    if (length > 0) {
        // A message that can't be written is lost without notice.
        [[maybe_unused]] const ssize_t written = write(atrace_marker_fd, buffer, length);
    }
}

constexpr const char* kNoTrack = "";
constexpr const char* kNoName = "";
constexpr const char* kNoValue = "";

}  // namespace

void atrace_begin_body(const char* name) {
    write_message(FORMATS("B|%d|", "%s"), kNoTrack, name, kNoValue);
}

void atrace_end_body(void) {
    write_message(FORMATS("E|%d", "%s"), kNoTrack, kNoName, kNoValue);
}

void atrace_async_begin_body(const char* name, int32_t cookie) {
    write_message(FORMATS("S|%d|", "|%" PRId32), kNoTrack, name, cookie);
}

void atrace_async_end_body(const char* name, int32_t cookie) {
    write_message(FORMATS("F|%d|", "|%" PRId32), kNoTrack, name, cookie);
}

void atrace_async_for_track_begin_body(const char* track, const char* name, int32_t cookie) {
    write_message(FORMATS("G|%d|", "|%" PRId32), track, name, cookie);
}

void atrace_async_for_track_end_body(const char* track, int32_t cookie) {
    // There is no name: the track takes its place, and is cut like a name.
    write_message(FORMATS("H|%d|", "|%" PRId32), kNoTrack, track, cookie);
}

void atrace_instant_body(const char* name) {
    write_message(FORMATS("I|%d|", "%s"), kNoTrack, name, kNoValue);
}

void atrace_instant_for_track_body(const char* track, const char* name) {
    write_message(FORMATS("N|%d|", "%s"), track, name, kNoValue);
}

void atrace_int_body(const char* name, int32_t value) {
    write_message(FORMATS("C|%d|", "|%" PRId32), kNoTrack, name, value);
}

void atrace_int64_body(const char* name, int64_t value) {
    write_message(FORMATS("C|%d|", "|%" PRId64), kNoTrack, name, value);
}
