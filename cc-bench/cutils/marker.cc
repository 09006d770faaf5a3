// SPDX-License-Identifier: Apache-2.0

#include "marker.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "log.h"

namespace {

// Only regular files and character devices are allowed: a pipe or a socket could block the program or send it a signal.
bool is_allowed(const struct stat& file) {
    return S_ISREG(file.st_mode) || S_ISCHR(file.st_mode);
}

// Takes a descriptor that the parent process left open, if the descriptor still refers to the intended file.
int inherit(const char* marker) {
    int fd = -1;
    uint64_t device = 0;
    uint64_t inode = 0;
    int used = 0;
    if (sscanf(marker, "fd:%d:%" SCNu64 ":%" SCNu64 "%n", &fd, &device, &inode, &used) != 3 || marker[used] != '\0') {
        log_error("ATRACE_MARKER=%s is not of the form fd:N:DEV:INO", marker);
        return -1;
    }
    struct stat file;
    if (fstat(fd, &file) != 0 || file.st_dev != device || file.st_ino != inode || !is_allowed(file)) {
        log_error("ATRACE_MARKER=%s: descriptor %d is not that file", marker, fd);
        return -1;
    }
    // The descriptor is duplicated, so that closing the inherited descriptor does not close the duplicate.
    return fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

int open_path(const char* path) {
    // O_APPEND, because two processes may write to the same file; O_NONBLOCK, because the path may name a pipe.
    const int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    struct stat file;
    if (fd >= 0 && (fstat(fd, &file) != 0 || !is_allowed(file))) {
        close(fd);
        errno = EINVAL;
        return -1;
    }
    return fd;
}

}  // namespace

int open_marker() {
    // A process with more rights than its caller must ignore the caller's variable. (Bionic has no secure_getenv.)
    const char* named = getauxval(AT_SECURE) == 0 ? getenv("ATRACE_MARKER") : nullptr;
    if (named != nullptr && named[0] != '\0') {
        if (strncmp(named, "fd:", 3) == 0) return inherit(named);
        const int fd = open_path(named);
        if (fd < 0) log_error("ATRACE_MARKER=%s: %s", named, strerror(errno));
        return fd;
    }
    int fd = open("/sys/kernel/tracing/trace_marker", O_WRONLY | O_CLOEXEC);
    if (fd < 0) fd = open("/sys/kernel/debug/tracing/trace_marker", O_WRONLY | O_CLOEXEC);
    if (fd < 0) log_error("trace_marker can't be opened: %s", strerror(errno));
    return fd;
}
