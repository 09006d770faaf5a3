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

// As early as bionic, which fills its cache when the process starts. A child learns its own id before fork() returns
// there; a bare clone() system call is not noticed, nor is it by bionic.
[[gnu::constructor]] void start() {
    remember();
    pthread_atfork(nullptr, nullptr, remember);
}

}  // namespace

pid_t cached_getpid() {
    const pid_t known = cached.load(std::memory_order_relaxed);
    // Zero only in constructors that run before ours.
    return known != 0 ? known : getpid();
}
