// SPDX-License-Identifier: Apache-2.0

#pragma once

// Opens the file for messages: the file that ATRACE_MARKER names or, without this variable, the kernel's marker at its
// new or its old path. Returns -1 and logs the reason if the file can't be opened.
//
// ATRACE_MARKER is a path or fd:N:DEV:INO, an inherited descriptor with its expected device and inode. Android's
// libcutils has no such variable; it is for tests and benches on hosts.
int open_marker();
