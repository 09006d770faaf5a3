// SPDX-License-Identifier: Apache-2.0

// The loops of the C++ side. Each loop runs one operation `iterations` times. The operation is written as in a C++
// program.

#pragma once

#include <cstdint>

#include "rust/cxx.h"

namespace cc_bench {

void begin(const char* name, uint64_t iterations);
void begin_other_tag(const char* name, uint64_t iterations);
void end(uint64_t iterations);
void scoped(const char* name, uint64_t iterations);
void instant(const char* name, uint64_t iterations);
void instant_for_track(const char* track, const char* name, uint64_t iterations);
void counter_int(const char* name, uint64_t iterations);
void counter_int64(const char* name, uint64_t iterations);
void async_begin(const char* name, uint64_t iterations);
void async_end(const char* name, uint64_t iterations);
void async_for_track_begin(const char* track, const char* name, uint64_t iterations);
void async_for_track_end(const char* track, uint64_t iterations);
uint64_t is_enabled(uint64_t iterations);
uint64_t get_tags(uint64_t iterations);
uint64_t raw_write(int32_t fd, rust::Slice<const uint8_t> message, uint64_t iterations);
uint64_t inline_writes(int32_t fd, rust::Slice<const uint8_t> messages, rust::Slice<const size_t> lengths,
                       uint64_t iterations);

// Returns whether the libcutils of this device has the function. For functions that every libcutils has, returns true
// without a check.
bool has(rust::Str function);
uint64_t enabled_tags();
void update_tags();
rust::String cutils_library();

}  // namespace cc_bench

// Functions that other languages can call. They call the inline functions of libcutils' header.
extern "C" {
int cc_bench_is_tag_enabled(uint64_t tag);
void cc_bench_begin(uint64_t tag, const char* name);
void cc_bench_end(uint64_t tag);
}
