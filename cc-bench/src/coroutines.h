// SPDX-License-Identifier: Apache-2.0

// Runs the tasks of `tasks.h`, in the version that the given compiler has compiled.

#pragma once

#include <cstdint>

#include "rust/cxx.h"

namespace cc_bench {

struct Batch;
enum class Compiler : uint8_t;
enum class Kind : uint8_t;

Batch run(Compiler compiler, Kind kind, uint32_t fibonacci, uint64_t tasks, bool inside);
rust::String version(Compiler compiler);

}  // namespace cc_bench
