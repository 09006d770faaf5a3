// SPDX-License-Identifier: Apache-2.0

#include "process.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>

namespace {

std::atomic<pid_t> cached{0};

void remember() {
    cached.store(getpid(), std::memory_order_relaxed);
}

// Runs as early as the corresponding code of bionic, which fills its cache of the process id when the process starts.
// After fork(), a child learns its own id before fork() returns. Like bionic, this code does not notice a bare clone()
// system call.
[[gnu::constructor]] void start() {
    remember();
    pthread_atfork(nullptr, nullptr, remember);
}

}  // namespace

pid_t cached_getpid() {
    const pid_t known = cached.load(std::memory_order_relaxed);
    // The cached id is zero only in constructors that run before the constructor `start`.
    return known != 0 ? known : getpid();
}
