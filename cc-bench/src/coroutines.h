// SPDX-License-Identifier: Apache-2.0

// Tasks that compute Fibonacci numbers: one after the other, in a thread each, in a coroutine each, or all in one
// coroutine that yields. A function runs a batch and returns the durations of its parts.

#pragma once

#include <cstdint>

#include "rust/cxx.h"

namespace cc_bench {

struct Batch;

Batch tasks_sequential(uint32_t fibonacci, uint64_t tasks);
Batch tasks_threads(uint32_t fibonacci, uint64_t tasks);
Batch tasks_coroutines(uint32_t fibonacci, uint64_t tasks);
Batch tasks_co_yield(uint32_t fibonacci, uint64_t tasks);

}  // namespace cc_bench
