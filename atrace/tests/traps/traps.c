// Counts, in threads that ask for it, each call of a function that events must not call: of the allocator, locks, the C
// library's threads, the dynamic linker and the environment. To be loaded with LD_PRELOAD, before all other libraries. For
// glibc.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static __thread int armed __attribute__((tls_model("initial-exec")));
static __thread int hits __attribute__((tls_model("initial-exec")));

void traps_arm(void) { hits = 0; armed = 1; }

int traps_disarm(void) { armed = 0; return hits; }

// Prints the function's name at each call; with ATRACE_TRAPS_WHO, also its caller.
static void hit(const char *name) {
    if (!armed) return;
    armed = 0;
    hits++;
    ssize_t said = write(2, name, strlen(name)) + write(2, "\n", 1);
    (void)said;
    for (char **variable = environ; variable && *variable; variable++) {
        if (strncmp(*variable, "ATRACE_TRAPS_WHO=", 17)) continue;
        void *callers[32];
        backtrace_symbols_fd(callers, backtrace(callers, 32), 2);
    }
    armed = 1;
}

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

void *malloc(size_t size) { hit("malloc"); return __libc_malloc(size); }
void *calloc(size_t count, size_t size) { hit("calloc"); return __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { hit("realloc"); return __libc_realloc(old, size); }
void *memalign(size_t alignment, size_t size) { hit("memalign"); return __libc_memalign(alignment, size); }
void *aligned_alloc(size_t alignment, size_t size) { hit("aligned_alloc"); return __libc_memalign(alignment, size); }
int posix_memalign(void **place, size_t alignment, size_t size) {
    hit("posix_memalign");
    *place = __libc_memalign(alignment, size);
    return *place ? 0 : ENOMEM;
}
void free(void *old) { if (old) hit("free"); __libc_free(old); }

static void *(*real_dlsym)(void *, const char *);
// With the names of glibc's symbol versions on x86_64 and aarch64.
static void *next(const char *name) {
    const char *versions[] = { "GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5" };
    for (unsigned i = 0; !real_dlsym && i < 3; i++) *(void **)&real_dlsym = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    return real_dlsym(RTLD_NEXT, name);
}

#define PASS(result, name, parameters, arguments) \
    static result (*real_##name) parameters; \
    result name parameters { hit(#name); return real_##name arguments; }

PASS(int, pthread_create, (pthread_t *thread, const pthread_attr_t *how, void *(*body)(void *), void *with), (thread, how, body, with))
PASS(int, pthread_mutex_lock, (pthread_mutex_t *lock), (lock))
PASS(int, pthread_mutex_trylock, (pthread_mutex_t *lock), (lock))
PASS(int, pthread_rwlock_rdlock, (pthread_rwlock_t *lock), (lock))
PASS(int, pthread_rwlock_wrlock, (pthread_rwlock_t *lock), (lock))
PASS(int, pthread_cond_wait, (pthread_cond_t *condition, pthread_mutex_t *lock), (condition, lock))
// pthread_atfork is linked into each program, and calls this.
PASS(int, __register_atfork, (void (*before)(void), void (*parent)(void), void (*child)(void), void *library), (before, parent, child, library))
PASS(int, pthread_key_create, (pthread_key_t *key, void (*at_end)(void *)), (key, at_end))
PASS(int, __cxa_thread_atexit_impl, (void (*body)(void *), void *with, void *library), (body, with, library))
PASS(void *, dlopen, (const char *name, int flags), (name, flags))
PASS(char *, getenv, (const char *name), (name))
PASS(char *, secure_getenv, (const char *name), (name))
PASS(int, setenv, (const char *name, const char *value, int replace), (name, value, replace))

void *dlsym(void *library, const char *name) {
    hit("dlsym");
    if (!real_dlsym) next("dlsym");
    return real_dlsym(library, name);
}

// std's locks make this system call directly.
static long (*real_syscall)(long, ...);
long syscall(long number, ...) {
    va_list all;
    va_start(all, number);
    long a = va_arg(all, long), b = va_arg(all, long), c = va_arg(all, long);
    long d = va_arg(all, long), e = va_arg(all, long), f = va_arg(all, long);
    va_end(all);
    if (number == SYS_futex && (b & FUTEX_CMD_MASK) != FUTEX_WAKE) hit("futex");
    if (number == SYS_clone || number == SYS_clone3) hit("clone");
    return real_syscall(number, a, b, c, d, e, f);
}

__attribute__((constructor(101))) static void find(void) {
    *(void **)&real_syscall = next("syscall");
    *(void **)&real_pthread_create = next("pthread_create");
    *(void **)&real_pthread_mutex_lock = next("pthread_mutex_lock");
    *(void **)&real_pthread_mutex_trylock = next("pthread_mutex_trylock");
    *(void **)&real_pthread_rwlock_rdlock = next("pthread_rwlock_rdlock");
    *(void **)&real_pthread_rwlock_wrlock = next("pthread_rwlock_wrlock");
    *(void **)&real_pthread_cond_wait = next("pthread_cond_wait");
    *(void **)&real___register_atfork = next("__register_atfork");
    *(void **)&real_pthread_key_create = next("pthread_key_create");
    *(void **)&real___cxa_thread_atexit_impl = next("__cxa_thread_atexit_impl");
    *(void **)&real_dlopen = next("dlopen");
    *(void **)&real_getenv = next("getenv");
    *(void **)&real_secure_getenv = next("secure_getenv");
    *(void **)&real_setenv = next("setenv");
}
