// SPDX-License-Identifier: Apache-2.0

#include "cc-bench/src/bench.h"

#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string_view>

#include <cutils/trace.h>

// These functions do not exist in the libcutils of older devices. A program with a strong reference to a missing
// function does not start on such a device.
extern "C" {
[[gnu::weak]] decltype(atrace_get_enabled_tags) atrace_get_enabled_tags;
[[gnu::weak]] decltype(atrace_end_body) atrace_end_body;
[[gnu::weak]] decltype(atrace_async_for_track_begin_body) atrace_async_for_track_begin_body;
[[gnu::weak]] decltype(atrace_async_for_track_end_body) atrace_async_for_track_end_body;
[[gnu::weak]] decltype(atrace_instant_body) atrace_instant_body;
[[gnu::weak]] decltype(atrace_instant_for_track_body) atrace_instant_for_track_body;
}

namespace cc_bench {
namespace {

// The only tag that can be enabled for a single host program or app.
constexpr uint64_t kTag = ATRACE_TAG_APP;
// A tag that stays off while kTag is on.
constexpr uint64_t kOtherTag = ATRACE_TAG_ACTIVITY_MANAGER;

// The usual C++ class for tracing a function.
class ScopedTrace {
public:
    ScopedTrace(uint64_t tag, const char* name) : tag_(tag) { atrace_begin(tag_, name); }
    ~ScopedTrace() { atrace_end(tag_); }
    ScopedTrace(const ScopedTrace&) = delete;
    ScopedTrace& operator=(const ScopedTrace&) = delete;

private:
    uint64_t tag_;
};

// Hides a value from the compiler at no cost, so that the compiler moves nothing out of the loop.
template <typename Value>
[[gnu::always_inline]] inline void forget(Value& value) {
    asm volatile("" : "+r"(value) : : "memory");
}

template <typename Operation>
[[gnu::always_inline]] inline void repeat(uint64_t iterations, Operation operation) {
    for (uint64_t i = 0; i < iterations; i++) operation(i);
}

}  // namespace

void begin(const char* name, uint64_t iterations) {
    repeat(iterations, [&](uint64_t) {
        forget(name);
        atrace_begin(kTag, name);
    });
}

void begin_other_tag(const char* name, uint64_t iterations) {
    repeat(iterations, [&](uint64_t) {
        forget(name);
        atrace_begin(kOtherTag, name);
    });
}

void end(uint64_t iterations) {
    repeat(iterations, [](uint64_t) { atrace_end(kTag); });
}

void scoped(const char* name, uint64_t iterations) {
    repeat(iterations, [&](uint64_t) {
        forget(name);
        ScopedTrace trace(kTag, name);
    });
}

void instant(const char* name, uint64_t iterations) {
    repeat(iterations, [&](uint64_t) {
        forget(name);
        atrace_instant(kTag, name);
    });
}

void instant_for_track(const char* track, const char* name, uint64_t iterations) {
    repeat(iterations, [&](uint64_t) {
        forget(name);
        atrace_instant_for_track(kTag, track, name);
    });
}

void counter_int(const char* name, uint64_t iterations) {
    repeat(iterations, [&](uint64_t i) {
        forget(name);
        atrace_int(kTag, name, static_cast<int32_t>(i));
    });
}

void counter_int64(const char* name, uint64_t iterations) {
    repeat(iterations, [&](uint64_t i) {
        forget(name);
        atrace_int64(kTag, name, static_cast<int64_t>(i));
    });
}

void async_begin(const char* name, uint64_t iterations) {
    repeat(iterations, [&](uint64_t i) {
        forget(name);
        atrace_async_begin(kTag, name, static_cast<int32_t>(i));
    });
}

void async_end(const char* name, uint64_t iterations) {
    repeat(iterations, [&](uint64_t i) {
        forget(name);
        atrace_async_end(kTag, name, static_cast<int32_t>(i));
    });
}

void async_for_track_begin(const char* track, const char* name, uint64_t iterations) {
    repeat(iterations, [&](uint64_t i) {
        forget(name);
        atrace_async_for_track_begin(kTag, track, name, static_cast<int32_t>(i));
    });
}

void async_for_track_end(const char* track, uint64_t iterations) {
    repeat(iterations, [&](uint64_t i) {
        forget(track);
        atrace_async_for_track_end(kTag, track, static_cast<int32_t>(i));
    });
}

uint64_t is_enabled(uint64_t iterations) {
    uint64_t enabled = 0;
    repeat(iterations, [&](uint64_t) {
        if (__builtin_expect(atrace_is_tag_enabled(kTag) != 0, 0)) enabled++;
    });
    return enabled;
}

uint64_t get_tags(uint64_t iterations) {
    uint64_t tags = 0;
    repeat(iterations, [&](uint64_t) {
        tags = atrace_get_enabled_tags();
        forget(tags);
    });
    return tags;
}

uint64_t raw_write(int32_t fd, rust::Slice<const uint8_t> message, uint64_t iterations) {
    const uint8_t* bytes = message.data();
    const size_t length = message.size();
    uint64_t whole = 0;
    repeat(iterations, [&](uint64_t) {
        forget(bytes);
        if (write(fd, bytes, length) == static_cast<ssize_t>(length)) whole++;
    });
    return whole;
}

// Executes the instruction of the system call without a function call, on x86_64 and aarch64.
[[gnu::always_inline]] static inline intptr_t system_write(intptr_t fd, const uint8_t* bytes, size_t length) {
#if defined(__x86_64__)
    intptr_t result = SYS_write;
    asm volatile("syscall" : "+a"(result) : "D"(fd), "S"(bytes), "d"(length) : "rcx", "r11", "memory");
    return result;
#elif defined(__aarch64__)
    register intptr_t result asm("x0") = fd;
    register const uint8_t* second asm("x1") = bytes;
    register size_t third asm("x2") = length;
    register intptr_t number asm("x8") = SYS_write;
    asm volatile("svc #0" : "+r"(result) : "r"(second), "r"(third), "r"(number) : "memory");
    return result;
#else
    return syscall(SYS_write, fd, bytes, length);
#endif
}

uint64_t inline_writes(int32_t fd, rust::Slice<const uint8_t> messages, rust::Slice<const size_t> lengths,
                       uint64_t iterations) {
    uint64_t whole = 0;
    repeat(iterations, [&](uint64_t) {
        const uint8_t* bytes = messages.data();
        for (const size_t length : lengths) {
            forget(bytes);
            if (system_write(fd, bytes, length) == static_cast<intptr_t>(length)) whole++;
            bytes += length;
        }
    });
    return whole;
}

bool has(rust::Str function) {
    struct Known {
        std::string_view name;
        bool found;
    };
#define KNOWN(name) {#name, &name != nullptr}
    const Known all[] = {
        KNOWN(atrace_get_enabled_tags),
        KNOWN(atrace_end_body),
        KNOWN(atrace_async_for_track_begin_body),
        KNOWN(atrace_async_for_track_end_body),
        KNOWN(atrace_instant_body),
        KNOWN(atrace_instant_for_track_body),
    };
#undef KNOWN
    const std::string_view asked(function.data(), function.size());
    for (const Known& known : all) {
        if (known.name == asked) return known.found;
    }
    return true;
}

uint64_t enabled_tags() {
    return atrace_get_enabled_tags();
}

void update_tags() {
    atrace_update_tags();
}

// Returns the path of the library that these loops call, as the dynamic linker reports it.
rust::String cutils_library() {
    Dl_info found = {};
    if (dladdr(reinterpret_cast<void*>(&atrace_begin_body), &found) == 0 || found.dli_fname == nullptr) {
        return rust::String();
    }
    return rust::String::lossy(found.dli_fname);
}

}  // namespace cc_bench

int cc_bench_is_tag_enabled(uint64_t tag) {
    return atrace_is_tag_enabled(tag) != 0;
}

void cc_bench_begin(uint64_t tag, const char* name) {
    atrace_begin(tag, name);
}

void cc_bench_end(uint64_t tag) {
    atrace_end(tag);
}
