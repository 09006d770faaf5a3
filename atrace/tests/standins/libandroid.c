// SPDX-License-Identifier: Apache-2.0

// Stands in for the libandroid of one Android version: ANDROID is its API level. Its functions print how they were called.
// It says that tracing is enabled while the file that STANDIN_ENABLED names exists.

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define SAY(...) (printf("CALL " __VA_ARGS__), putchar('\n'), fflush(stdout))

#if ANDROID >= 23
bool ATrace_isEnabled(void) { return access(getenv("STANDIN_ENABLED"), F_OK) == 0; }
void ATrace_beginSection(const char* name) { SAY("begin %s", name); }
void ATrace_endSection(void) { SAY("end"); }
#endif

#if ANDROID >= 29
void ATrace_beginAsyncSection(const char* name, int32_t cookie) { SAY("async begin %s %d", name, cookie); }
void ATrace_endAsyncSection(const char* name, int32_t cookie) { SAY("async end %s %d", name, cookie); }
void ATrace_setCounter(const char* name, int64_t value) { SAY("counter %s %lld", name, (long long)value); }
#endif
