// SPDX-License-Identifier: Apache-2.0

// Tasks that compute Fibonacci numbers: one after the other, in a thread each, in a coroutine each, or all in one
// coroutine that yields. `tasks.cc` is compiled once by each compiler that is installed, each time into a namespace with
// the name of the compiler.

#pragma once

#include <cstdint>

namespace cc_bench {

// The kinds of tasks, in the order of `Kind` in coroutines.rs.
enum class TaskKind : uint8_t { kSequential, kThreads, kCoroutines, kCoYield };

// The same values as in `Batch` in coroutines.rs.
struct TaskTimes {
    uint64_t total = 0;
    uint64_t creation = 0;
    uint64_t resume = 0;
    uint64_t compute = 0;
    uint64_t switches = 0;
    uint64_t destruction = 0;
    double sum = 0;
    uint64_t resumes = 0;
    uint64_t news = 0;
    uint64_t frame_bytes = 0;
    uint64_t deletes = 0;
    uint64_t freed_bytes = 0;
};

// `inside`: whether the time of each computation in a coroutine is measured from within the coroutine, too.
#ifdef CC_BENCH_GCC
namespace gcc {
TaskTimes run_tasks(TaskKind kind, uint32_t fibonacci, uint64_t tasks, bool inside);
const char* compiler_version();
}  // namespace gcc
#endif
#ifdef CC_BENCH_CLANG
namespace clang {
TaskTimes run_tasks(TaskKind kind, uint32_t fibonacci, uint64_t tasks, bool inside);
const char* compiler_version();
}  // namespace clang
#endif

}  // namespace cc_bench
