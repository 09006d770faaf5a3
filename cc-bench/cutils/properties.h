// SPDX-License-Identifier: Apache-2.0

// The functions for system properties that libcutils calls in bionic, with bionic's names. On a host, these functions
// read the property store of atrace-sys: the file that ATRACE_PROPERTIES names, otherwise
// /dev/shm/atrace-<euid>/properties.
//
// The functions are in a separate shared library, as on Android (libc.so), so that libcutils' check for a changed flags
// property is a call from one library into another.

#pragma once

#include <cstdint>

// The longest value has 91 bytes and a NUL.
inline constexpr int kPropertyValueMax = 92;

// A property. The type is opaque, as in bionic. A property stays valid for the life of the process.
struct prop_info;

#pragma GCC visibility push(default)
extern "C" {

// Returns the property, or null if no property has this name (yet), or if there is no store.
const prop_info* __system_property_find(const char* name);

// Returns the property's serial, which changes whenever the value changes. The load has acquire semantics.
uint32_t __system_property_serial(const prop_info* info);

// Copies the name, unless `name` is null, and the value; returns the length of the value.
int __system_property_read(const prop_info* info, char* name, char* value);

// Finds and reads a property. A missing property has an empty value.
int __system_property_get(const char* name, char* value);
}
#pragma GCC visibility pop
