// SPDX-License-Identifier: Apache-2.0

#include "cc-bench/src/coroutines.h"

#include <stdexcept>

#include "cc-bench/src/coroutines.rs.h"
#include "tasks.h"

namespace cc_bench {
namespace {

TaskTimes run_by(Compiler compiler, TaskKind kind, uint32_t fibonacci, uint64_t tasks, bool inside) {
#ifdef CC_BENCH_GCC
    if (compiler == Compiler::Gcc) return gcc::run_tasks(kind, fibonacci, tasks, inside);
#endif
#ifdef CC_BENCH_CLANG
    if (compiler == Compiler::Clang) return clang::run_tasks(kind, fibonacci, tasks, inside);
#endif
    throw std::invalid_argument("the compiler was not installed when this was built");
}

}  // namespace

Batch run(Compiler compiler, Kind kind, uint32_t fibonacci, uint64_t tasks, bool inside) {
    TaskTimes times = run_by(compiler, static_cast<TaskKind>(kind), fibonacci, tasks, inside);
    Batch batch{};
    batch.total = times.total;
    batch.creation = times.creation;
    batch.resume = times.resume;
    batch.compute = times.compute;
    batch.switches = times.switches;
    batch.destruction = times.destruction;
    batch.sum = times.sum;
    batch.resumes = times.resumes;
    batch.news = times.news;
    batch.frame_bytes = times.frame_bytes;
    batch.deletes = times.deletes;
    batch.freed_bytes = times.freed_bytes;
    return batch;
}

rust::String version(Compiler compiler) {
#ifdef CC_BENCH_GCC
    if (compiler == Compiler::Gcc) return gcc::compiler_version();
#endif
#ifdef CC_BENCH_CLANG
    if (compiler == Compiler::Clang) return clang::compiler_version();
#endif
    return {};
}

}  // namespace cc_bench
