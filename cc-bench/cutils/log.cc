// SPDX-License-Identifier: Apache-2.0

#include "log.h"

#include <cstdarg>
#include <cstdio>

void log_error(const char* format, ...) {
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    // The line is written by a single call, so that lines of several processes do not mix.
    fprintf(stderr, "cutils-trace: %s\n", line);
}
