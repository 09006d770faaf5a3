// SPDX-License-Identifier: Apache-2.0

#pragma once

// Opens what messages are written to: what ATRACE_MARKER names, else the kernel's marker, at its new place or its old
// one. Returns -1 and says why where there is none.
//
// ATRACE_MARKER is a path or fd:N:DEV:INO, an inherited descriptor with the device and inode it must have. It has
// nothing to do with libcutils, which knows only the kernel's marker: it is what lets a host's tests and benches see
// the messages.
int open_marker();
