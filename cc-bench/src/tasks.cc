// SPDX-License-Identifier: Apache-2.0

#include "tasks.h"

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

// In older NDKs, libc++ has coroutines in the header and the namespace that they had before their standardization.
#if __has_include(<coroutine>)
#include <coroutine>
namespace coro = std;
#else
#include <experimental/coroutine>
namespace coro = std::experimental;
#endif

#ifdef __clang__
#define CC_BENCH_COMPILER clang
#else
#define CC_BENCH_COMPILER gcc
#endif

namespace cc_bench::CC_BENCH_COMPILER {
namespace {

// Hides a value from the compiler, which could otherwise compute the pure function once for all tasks, or remove the
// computation.
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

inline double compute(uint32_t n) {
    return opaque(fibonacci_of(opaque(n)));
}

using Clock = std::chrono::steady_clock;

uint64_t between(Clock::time_point start, Clock::time_point end) {
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(end - start).count());
}

// The times at which the most recent task began and ended its computation, as the task itself has read them from the
// clock.
Clock::time_point began;
Clock::time_point ended;

template <bool kInside>
inline double compute_in_a_coroutine(uint32_t n) {
    if constexpr (!kInside) return compute(n);
    began = Clock::now();
    double result = compute(n);
    ended = Clock::now();
    return result;
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

// A coroutine that waits for its first resume, computes, and waits until it is destroyed.
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

template <bool kInside>
[[gnu::noinline]] Task task(uint32_t n) {
    co_return compute_in_a_coroutine<kInside>(n);
}

// A coroutine that yields a number at each resume, and never ends.
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

    void resume() { handle_.resume(); }
    double value() const { return handle_.promise().value; }

private:
    explicit Generator(coro::coroutine_handle<promise_type> handle) : handle_(handle) {}
    coro::coroutine_handle<promise_type> handle_;
};

template <bool kInside>
[[gnu::noinline]] Generator generator(uint32_t n) {
    for (;;) co_yield compute_in_a_coroutine<kInside>(n);
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

// Calls `resume` `tasks` times. Each call resumes another task, or all calls resume the same coroutine. Calls `note`
// after each call. Returns the time at which the last task has ended. For a task that is timed from within, the clock
// is read four times: directly before and after the resume, and before and after the computation.
template <bool kInside, typename Resume, typename Note>
[[gnu::always_inline]] inline Clock::time_point resume_all(TaskTimes& times, uint64_t tasks,
                                                           Clock::time_point start, Resume resume, Note note) {
    for (uint64_t i = 0; i < tasks; i++) {
        if constexpr (kInside) {
            auto before = Clock::now();
            resume(i);
            auto after = Clock::now();
            times.switches += between(before, began) + between(ended, after);
            times.compute += between(began, ended);
        } else {
            resume(i);
        }
        note(i);
    }
    auto over = Clock::now();
    times.resume = between(start, over);
    return over;
}

TaskTimes sequential(uint32_t fibonacci, uint64_t tasks) {
    TaskTimes times;
    auto start = Clock::now();
    for (uint64_t i = 0; i < tasks; i++) times.sum += compute(fibonacci);
    times.resume = times.total = between(start, Clock::now());
    return times;
}

TaskTimes threads(uint32_t fibonacci, uint64_t tasks) {
    TaskTimes times;
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
    auto created = Clock::now();
    gate.open();
    for (auto& thread : threads) thread.join();
    auto over = Clock::now();
    times.creation = between(start, created);
    times.resume = between(created, over);
    times.total = between(start, over);
    for (double result : results) times.sum += result;
    return times;
}

void count_frames(TaskTimes& times) {
    times.news = frames.news;
    times.frame_bytes = frames.bytes;
    times.deletes = frames.deletes;
    times.freed_bytes = frames.freed;
}

template <bool kInside>
TaskTimes coroutines(uint32_t fibonacci, uint64_t tasks) {
    TaskTimes times;
    frames = Frames{};
    std::vector<Task> all;
    all.reserve(tasks);
    auto start = Clock::now();
    for (uint64_t i = 0; i < tasks; i++) all.push_back(task<kInside>(fibonacci));
    auto created = Clock::now();
    auto note = [&](uint64_t i) {
        times.sum += all[i].result();
        times.resumes += all[i].done();
    };
    auto ran = resume_all<kInside>(times, tasks, created, [&](uint64_t i) { all[i].resume(); }, note);
    all.clear();
    auto over = Clock::now();
    times.creation = between(start, created);
    times.destruction = between(ran, over);
    times.total = between(start, over);
    count_frames(times);
    return times;
}

template <bool kInside>
TaskTimes yields(uint32_t fibonacci, uint64_t tasks) {
    TaskTimes times;
    frames = Frames{};
    auto start = Clock::now();
    Clock::time_point ran;
    {
        Generator numbers = generator<kInside>(fibonacci);
        auto created = Clock::now();
        times.creation = between(start, created);
        auto note = [&](uint64_t) {
            times.sum += numbers.value();
            times.resumes++;
        };
        ran = resume_all<kInside>(times, tasks, created, [&](uint64_t) { numbers.resume(); }, note);
    }
    auto over = Clock::now();
    times.destruction = between(ran, over);
    times.total = between(start, over);
    count_frames(times);
    return times;
}

}  // namespace

TaskTimes run_tasks(TaskKind kind, uint32_t fibonacci, uint64_t tasks, bool inside) {
    switch (kind) {
        case TaskKind::kSequential:
            return sequential(fibonacci, tasks);
        case TaskKind::kThreads:
            return threads(fibonacci, tasks);
        case TaskKind::kCoroutines:
            return inside ? coroutines<true>(fibonacci, tasks) : coroutines<false>(fibonacci, tasks);
        case TaskKind::kCoYield:
            return inside ? yields<true>(fibonacci, tasks) : yields<false>(fibonacci, tasks);
    }
    return {};
}

const char* compiler_version() {
    return __VERSION__;
}

}  // namespace cc_bench::CC_BENCH_COMPILER
