// SPDX-License-Identifier: Apache-2.0

// Stands in for the libandroid of one Android version: ANDROID is its API level. Its functions print how they were called.
// Tracing is enabled while the file that STANDIN_ENABLED names exists. After a change, the old answer is given for another
// STANDIN_LAG_MS from the first question on, as if another thread were just about to read the properties.

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

// A single write, which allocates nothing.
#define SAY(...) ({ \
    char line[4096]; \
    int length = snprintf(line, sizeof line - 1, "CALL " __VA_ARGS__); \
    line[length] = '\n'; \
    (void)!write(1, line, length + 1); \
})

#if ANDROID >= 23
static bool said;
static int64_t changed; // The time at which the change was first seen; 0 without a change.
static bool is_locked;
static const char *enabled, *lag;

// Read once, so that the functions do no more than those of a system library.
__attribute__((constructor)) static void read_environment(void) {
    enabled = getenv("STANDIN_ENABLED");
    lag = getenv("STANDIN_LAG_MS");
}

bool ATrace_isEnabled(void) {
    bool is = enabled && access(enabled, F_OK) == 0;
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    int64_t now = time.tv_sec * 1000 + time.tv_nsec / 1000000;
    while (__atomic_exchange_n(&is_locked, true, __ATOMIC_ACQUIRE)) {}
    if (is == said) {
        changed = 0;
    } else if (lag == NULL || (changed != 0 && now - changed >= atoi(lag))) {
        said = is;
        changed = 0;
    } else if (changed == 0) {
        changed = now;
    }
    is = said;
    __atomic_store_n(&is_locked, false, __ATOMIC_RELEASE);
    return is;
}
void ATrace_beginSection(const char* name) { SAY("begin %s", name); }
void ATrace_endSection(void) { SAY("end"); }
#endif

#if ANDROID >= 29
void ATrace_beginAsyncSection(const char* name, int32_t cookie) { SAY("async begin %s %d", name, cookie); }
void ATrace_endAsyncSection(const char* name, int32_t cookie) { SAY("async end %s %d", name, cookie); }
void ATrace_setCounter(const char* name, int64_t value) { SAY("counter %s %lld", name, (long long)value); }
#endif
