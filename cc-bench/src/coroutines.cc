// SPDX-License-Identifier: Apache-2.0

#include "cc-bench/src/coroutines.h"

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

// In older NDKs, libc++ has coroutines in the namespace and header from before their standardization.
#if __has_include(<coroutine>)
#include <coroutine>
namespace coro = std;
#else
#include <experimental/coroutine>
namespace coro = std::experimental;
#endif

#include "cc-bench/src/coroutines.rs.h"

namespace cc_bench {
namespace {

// Hides a value from the compiler, which could otherwise compute the pure function once for all tasks, or remove it.
template <typename Value>
[[gnu::always_inline]] inline Value opaque(Value value) {
    asm volatile("" : "+r"(value) : : "memory");
    return value;
}

[[gnu::always_inline]] inline double opaque(double value) {
    // The value goes through memory, which works on every processor.
    asm volatile("" : "+m"(value) : : "memory");
    return value;
}

// Not inlined, so that every kind of task calls the same code.
[[gnu::noinline]] double fibonacci_of(uint32_t n) {
    return n < 2 ? static_cast<double>(n) : fibonacci_of(n - 1) + fibonacci_of(n - 2);
}

// The argument that makes a task compute nothing (NOTHING in coroutines.rs).
constexpr uint32_t kNothing = UINT32_MAX;

inline double compute(uint32_t n) {
    n = opaque(n);
    return opaque(n == kNothing ? 0.0 : fibonacci_of(n));
}

using Clock = std::chrono::steady_clock;

uint64_t since(Clock::time_point start) {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
}

// Counts the heap allocations of a batch's coroutine frames. One thread runs all of these coroutines.
struct Frames {
    uint64_t news = 0;
    uint64_t bytes = 0;
    uint64_t deletes = 0;
    uint64_t freed = 0;
};
Frames frames;

struct CountedFrame {
    static void* operator new(std::size_t size) {
        frames.news++;
        frames.bytes += size;
        return ::operator new(size);
    }
    static void operator delete(void* frame, std::size_t size) {
        frames.deletes++;
        frames.freed += size;
        ::operator delete(frame);
    }
};

// Waits for its first resume, computes, and waits until it is destroyed.
class Task {
public:
    struct promise_type : CountedFrame {
        double result = 0;

        Task get_return_object() { return Task(coro::coroutine_handle<promise_type>::from_promise(*this)); }
        coro::suspend_always initial_suspend() noexcept { return {}; }
        coro::suspend_always final_suspend() noexcept { return {}; }
        void return_value(double value) { result = value; }
        void unhandled_exception() { std::terminate(); }
    };

    Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Task(const Task&) = delete;
    Task& operator=(const Task&) = delete;
    ~Task() {
        if (handle_) handle_.destroy();
    }

    void resume() { handle_.resume(); }
    bool done() const { return handle_.done(); }
    double result() const { return handle_.promise().result; }

private:
    explicit Task(coro::coroutine_handle<promise_type> handle) : handle_(handle) {}
    coro::coroutine_handle<promise_type> handle_;
};

[[gnu::noinline]] Task task(uint32_t n) {
    co_return compute(n);
}

// Yields a number at each resume, and never ends.
class Generator {
public:
    struct promise_type : CountedFrame {
        double value = 0;

        Generator get_return_object() {
            return Generator(coro::coroutine_handle<promise_type>::from_promise(*this));
        }
        coro::suspend_always initial_suspend() noexcept { return {}; }
        coro::suspend_always final_suspend() noexcept { return {}; }
        coro::suspend_always yield_value(double next) noexcept {
            value = next;
            return {};
        }
        void return_void() {}
        void unhandled_exception() { std::terminate(); }
    };

    Generator(const Generator&) = delete;
    Generator& operator=(const Generator&) = delete;
    ~Generator() { handle_.destroy(); }

    double next() {
        handle_.resume();
        return handle_.promise().value;
    }

private:
    explicit Generator(coro::coroutine_handle<promise_type> handle) : handle_(handle) {}
    coro::coroutine_handle<promise_type> handle_;
};

[[gnu::noinline]] Generator generator(uint32_t n) {
    for (;;) co_yield compute(n);
}

// Holds the threads until all are created, then releases them together. The threads sleep until then: spinning threads
// would slow down the creation of the others.
class Gate {
public:
    void wait() {
        std::unique_lock<std::mutex> lock(mutex_);
        opened_.wait(lock, [this] { return open_; });
    }

    void open() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            open_ = true;
        }
        opened_.notify_all();
    }

private:
    std::mutex mutex_;
    std::condition_variable opened_;
    bool open_ = false;
};

}  // namespace

Batch tasks_sequential(uint32_t fibonacci, uint64_t tasks) {
    Batch batch{};
    auto start = Clock::now();
    for (uint64_t i = 0; i < tasks; i++) batch.sum += compute(fibonacci);
    batch.resume = since(start);
    return batch;
}

Batch tasks_threads(uint32_t fibonacci, uint64_t tasks) {
    Batch batch{};
    Gate gate;
    std::vector<double> results(tasks);
    std::vector<std::thread> threads;
    threads.reserve(tasks);
    auto start = Clock::now();
    try {
        for (uint64_t i = 0; i < tasks; i++) {
            threads.emplace_back([&gate, &result = results[i], fibonacci] {
                gate.wait();
                result = compute(fibonacci);
            });
        }
    } catch (...) {
        // The threads that were started have to end before the error is returned.
        gate.open();
        for (auto& thread : threads) thread.join();
        throw;
    }
    batch.creation = since(start);
    start = Clock::now();
    gate.open();
    for (auto& thread : threads) thread.join();
    batch.resume = since(start);
    for (double result : results) batch.sum += result;
    return batch;
}

Batch tasks_coroutines(uint32_t fibonacci, uint64_t tasks) {
    Batch batch{};
    frames = Frames{};
    std::vector<Task> all;
    all.reserve(tasks);
    auto start = Clock::now();
    for (uint64_t i = 0; i < tasks; i++) all.push_back(task(fibonacci));
    batch.creation = since(start);
    start = Clock::now();
    for (Task& one : all) one.resume();
    batch.resume = since(start);
    for (const Task& one : all) {
        batch.resumes += one.done();
        batch.sum += one.result();
    }
    start = Clock::now();
    all.clear();
    batch.destruction = since(start);
    batch.news = frames.news;
    batch.frame_bytes = frames.bytes;
    batch.deletes = frames.deletes;
    batch.freed_bytes = frames.freed;
    return batch;
}

Batch tasks_co_yield(uint32_t fibonacci, uint64_t tasks) {
    Batch batch{};
    frames = Frames{};
    auto start = Clock::now();
    {
        Generator numbers = generator(fibonacci);
        batch.creation = since(start);
        start = Clock::now();
        for (uint64_t i = 0; i < tasks; i++) {
            batch.sum += numbers.next();
            batch.resumes++;
        }
        batch.resume = since(start);
        start = Clock::now();
    }
    batch.destruction = since(start);
    batch.news = frames.news;
    batch.frame_bytes = frames.bytes;
    batch.deletes = frames.deletes;
    batch.freed_bytes = frames.freed;
    return batch;
}

}  // namespace cc_bench
