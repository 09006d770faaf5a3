// SPDX-License-Identifier: Apache-2.0

#pragma once

// Tells what went wrong, on stderr: where Android's liblog writes on a host.
[[gnu::format(printf, 1, 2)]] void log_error(const char* format, ...);
