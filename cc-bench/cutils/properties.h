// SPDX-License-Identifier: Apache-2.0

// What libcutils asks bionic for when it wants a system property, under bionic's names. On a host these functions
// read the property store of atrace-sys: the file named by ATRACE_PROPERTIES, else /dev/shm/atrace-<euid>/properties.
//
// They live in a shared library of their own because they do on Android (libc.so): that is why libcutils' check for a
// changed flags property is a call from one library into another.

#pragma once

#include <cstdint>

// The longest value is 91 bytes and its NUL.
inline constexpr int kPropertyValueMax = 92;

// Opaque, as in bionic. It stays valid for the life of the process.
struct prop_info;

#pragma GCC visibility push(default)
extern "C" {

// Returns the property, or null where there is none of that name (yet), or no store.
const prop_info* __system_property_find(const char* name);

// Returns the number that changes whenever the value does, with acquire semantics.
uint32_t __system_property_serial(const prop_info* info);

// Copies the name, unless null, and the value; returns the value's length.
int __system_property_read(const prop_info* info, char* name, char* value);

// Finds and reads: an absent property is an empty one.
int __system_property_get(const char* name, char* value);
}
#pragma GCC visibility pop
