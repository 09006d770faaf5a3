// SPDX-License-Identifier: Apache-2.0

#include "properties.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string_view>

// The layout of the store that atrace-sys' `properties` writes. Numbers are in native byte order, because the file
// never leaves the machine.
struct prop_info {
    // Bit 0 of the serial is the index of the valid value. The writer fills the other value and then stores a new
    // serial.
    std::atomic<uint32_t> serial;
    uint32_t name_length;
    char name[184];
    char values[2][96];
};

namespace {

struct Header {
    char magic[8];
    uint32_t capacity;
    std::atomic<uint32_t> count;
    std::atomic<uint32_t> area_serial;
    char reserved[44];
};

constexpr char kMagic[8] = {'A', 'T', 'R', 'P', 'R', 'O', 'P', 1};
constexpr uint32_t kCapacity = 256;

struct Store {
    Header header;
    prop_info entries[kCapacity];
};

static_assert(sizeof(Header) == 64 && offsetof(Store, entries) == 64);
static_assert(sizeof(prop_info) == 384 && offsetof(prop_info, values) == 192);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// The store decides what this process writes, so it must belong to the process' user. Root may also read the store of
// the user that owns the directory.
bool is_trusted(const char* path, const struct stat& file) {
    if (!S_ISREG(file.st_mode) || (file.st_mode & (S_IWGRP | S_IWOTH)) != 0) return false;
    if (file.st_uid == geteuid()) return true;
    const std::string_view whole = path;
    const size_t slash = whole.rfind('/');
    char directory[PATH_MAX] = ".";
    if (slash != whole.npos) snprintf(directory, sizeof(directory), "%.*s", static_cast<int>(slash + 1), path);
    struct stat parent;
    return geteuid() == 0 && stat(directory, &parent) == 0 && parent.st_uid == file.st_uid;
}

const Store* map_store() {
    char standard[64];
    const char* path = secure_getenv("ATRACE_PROPERTIES");
    if (path == nullptr || path[0] == '\0') {
        snprintf(standard, sizeof(standard), "/dev/shm/atrace-%u/properties", static_cast<unsigned>(geteuid()));
        path = standard;
    }
    // Without O_NONBLOCK, opening a pipe would block the process.
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return nullptr;
    void* memory = MAP_FAILED;
    struct stat file;
    // The file must have its full size before it is accessed: an access past the end of the file raises SIGBUS.
    if (fstat(fd, &file) == 0 && is_trusted(path, file) && file.st_size >= static_cast<off_t>(sizeof(Store))) {
        memory = mmap(nullptr, sizeof(Store), PROT_READ, MAP_SHARED, fd, 0);
    }
    close(fd);
    if (memory == MAP_FAILED) return nullptr;
    const auto* mapped = static_cast<const Store*>(memory);
    if (memcmp(mapped->header.magic, kMagic, sizeof(kMagic)) != 0 || mapped->header.capacity != kCapacity) {
        munmap(memory, sizeof(Store));
        return nullptr;
    }
    return mapped;
}

// Returns the store, or null while no store exists. Once mapped, the store stays mapped.
const Store* store() {
    static std::atomic<const Store*> mapped{nullptr};
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    const Store* known = mapped.load(std::memory_order_acquire);
    if (known != nullptr) return known;
    pthread_mutex_lock(&mutex);
    known = mapped.load(std::memory_order_relaxed);
    if (known == nullptr) {
        known = map_store();
        mapped.store(known, std::memory_order_release);
    }
    pthread_mutex_unlock(&mutex);
    return known;
}

}  // namespace

const prop_info* __system_property_find(const char* name) {
    const Store* present = store();
    if (present == nullptr) return nullptr;
    const size_t length = strlen(name);
    const uint32_t count = std::min(present->header.count.load(std::memory_order_acquire), kCapacity);
    for (uint32_t i = 0; i < count; i++) {
        const prop_info& entry = present->entries[i];
        if (length < sizeof(entry.name) && entry.name_length == length && memcmp(entry.name, name, length) == 0) {
            return &entry;
        }
    }
    return nullptr;
}

uint32_t __system_property_serial(const prop_info* info) {
    return info->serial.load(std::memory_order_acquire);
}

int __system_property_read(const prop_info* info, char* name, char* value) {
    if (name != nullptr) {
        const size_t length = std::min<size_t>(info->name_length, sizeof(info->name) - 1);
        memcpy(name, info->name, length);
        name[length] = '\0';
    }
    for (;;) {
        const uint32_t serial = info->serial.load(std::memory_order_acquire);
        const char* valid = info->values[serial & 1];
        // The bytes are loaded atomically, because a writer may already be storing the second next value in their
        // place.
        int length = 0;
        while (length < kPropertyValueMax - 1) {
            const char byte = __atomic_load_n(valid + length, __ATOMIC_RELAXED);
            if (byte == '\0') break;
            value[length++] = byte;
        }
        value[length] = '\0';
        std::atomic_thread_fence(std::memory_order_acquire);
        if (info->serial.load(std::memory_order_relaxed) == serial) return length;
    }
}

int __system_property_get(const char* name, char* value) {
    const prop_info* info = __system_property_find(name);
    if (info == nullptr) {
        value[0] = '\0';
        return 0;
    }
    return __system_property_read(info, nullptr, value);
}
