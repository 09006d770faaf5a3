// SPDX-License-Identifier: Apache-2.0

#pragma once

#include <sys/types.h>

#pragma GCC visibility push(default)
extern "C" {

// Returns the process id without a system call, like bionic's getpid(). The getpid() of glibc makes a system call,
// which would add more than a third to the cost of an event on the C++ side. On Android, events do not have this cost.
pid_t cached_getpid();
}
#pragma GCC visibility pop
