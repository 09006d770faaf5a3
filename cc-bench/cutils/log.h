// SPDX-License-Identifier: Apache-2.0

#pragma once

// Reports an error on stderr, as Android's liblog does on a host.
[[gnu::format(printf, 1, 2)]] void log_error(const char* format, ...);
