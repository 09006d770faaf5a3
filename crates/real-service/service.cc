// Perfetto's own code as a program. A failure is an exit with another status than 0.
//
// service PRODUCERS CONSUMERS: runs the tracing service on two sockets. Prints "ready" when the service listens, and runs
// until it is killed.
//
// service produce EVENTS: the SDK as a producer of the service that PERFETTO_PRODUCER_SOCK_NAME names.
//
// service options EVENTS: the SDK as such a producer, in the first session that starts. Writes an instant of each
// category, events with data that a session can filter, and EVENTS instants "tick". Then prints "done".
//
// service both ROUNDS PLUGIN OTHER: uses the SDK, and two copies of this workspace's library as shared libraries. On each
// of two threads, writes slices of all three, nested in each other. Then starts a child, which writes by one copy and
// executes `service last` with the same arguments; `service last` does the same as `service both`, without a child.
// Prints how far the clocks differ, and "done".
#include "perfetto_c.cc"

#include <dlfcn.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <thread>

// The categories of this workspace's tags.
#define CATEGORIES \
  X("always") X("graphics") X("input") X("view") X("webview") X("wm") X("am") \
  X("syncmanager") X("audio") X("video") X("camera") X("hal") X("app") X("res") \
  X("dalvik") X("rs") X("bionic") X("power") X("packagemanager") X("ss") X("database") \
  X("network") X("adb") X("vibrator") X("aidl") X("nnapi") X("rro") X("thermal")
#define X(name) perfetto::Category(name),
PERFETTO_DEFINE_CATEGORIES(CATEGORIES perfetto::Category("sdk"));
#undef X
PERFETTO_TRACK_EVENT_STATIC_STORAGE();

static int Serve(const char* producers, const char* consumers) {
  perfetto::base::UnixTaskRunner tasks;
  auto service = perfetto::ServiceIPCHost::CreateInstance(&tasks);
  if (!service->Start(producers, consumers)) return 1;
  puts("ready");
  fflush(stdout);
  tasks.Run();
  return 0;
}

static int Produce(int events) {
  perfetto::TracingInitArgs args;
  args.backends = perfetto::kSystemBackend;
  perfetto::Tracing::Initialize(args);
  perfetto::TrackEvent::Register();
  for (int waited = 0; !TRACE_EVENT_CATEGORY_ENABLED("app"); waited++) {
    if (waited == 6000) return 1;
    usleep(10000);
  }
  // Longer than a chunk, so that packets are spread over several chunks and patched later.
  std::string large(20000, 'x');
  for (int number = 0; number < events; number++) {
    if (number % 100 == 0) {
      TRACE_EVENT_BEGIN("app", "sdk slice", "text", large);
      usleep(1000);
    } else {
      TRACE_EVENT_BEGIN("app", "sdk slice", "number", number);
    }
    TRACE_EVENT_END("app");
  }
  // Until the process is killed, because its thread still has to send the patches of the last packets.
  perfetto::TrackEvent::Flush();
  for (;;) pause();
}

class Observer : public perfetto::TrackEventSessionObserver {
 public:
  void OnStart(const perfetto::DataSourceBase::StartArgs&) override { started = true; }
  std::atomic<bool> started{false};
};

static int Options(int events) {
  perfetto::TracingInitArgs args;
  args.backends = perfetto::kSystemBackend;
  perfetto::Tracing::Initialize(args);
  static Observer observer;
  perfetto::TrackEvent::AddSessionObserver(&observer);
  perfetto::TrackEvent::Register();
  for (int waited = 0; !observer.started; waited++) {
    if (waited == 6000) return 1;
    usleep(10000);
  }
#define X(name) TRACE_EVENT_INSTANT(name, "category");
  CATEGORIES
#undef X
  TRACE_EVENT_INSTANT("app", "static", "number", 7, "text", "value");
  std::string name("dynamic");
  TRACE_EVENT_BEGIN("app", perfetto::DynamicString(name), "number", 7);
  TRACE_EVENT_END("app", "late", 1);
  for (int number = 0; number < events; number++) {
    TRACE_EVENT_INSTANT("app", "tick", "number", number);
    usleep(1000);
  }
  perfetto::TrackEvent::Flush();
  puts("done");
  fflush(stdout);
  for (;;) pause();
}

// A copy of this workspace's library.
struct Copy {
  explicit Copy(const char* path) {
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      fprintf(stderr, "%s\n", dlerror());
      exit(1);
    }
    Find(library, "plugin_connect", &connect);
    Find(library, "plugin_is_on", &is_on);
    Find(library, "plugin_begin", &begin);
    Find(library, "plugin_end", &end);
    Find(library, "plugin_now", &now);
  }
  template <typename F>
  static void Find(void* library, const char* name, F** found) {
    *found = reinterpret_cast<F*>(dlsym(library, name));
    if (!*found) exit(1);
  }
  void (*connect)();
  bool (*is_on)();
  void (*begin)(const char*);
  void (*end)();
  uint64_t (*now)();
};

static uint64_t Now() { return perfetto::TrackEvent::GetTraceTimeNs(); }

static uint64_t ThreadNow() { return static_cast<uint64_t>(perfetto::base::GetThreadCPUTimeNs().count()); }

// Runs until a clock has advanced by this much.
static void Pass(uint64_t ns, uint64_t (*clock)() = Now) {
  for (uint64_t start = clock(); clock() - start < ns;) {
  }
}

// Writes one round of nested slices: sdk, ours, other, inner. Between two begins, and between two ends, is a `pause`.
static void Round(const Copy& ours, const Copy& other, uint64_t pause) {
  Pass(pause);
  TRACE_EVENT_BEGIN("app", "sdk");
  Pass(pause);
  ours.begin("ours");
  Pass(pause);
  other.begin("other");
  Pass(pause);
  TRACE_EVENT_BEGIN("app", "inner");
  Pass(pause);
  TRACE_EVENT_END("app");
  Pass(pause);
  other.end();
  Pass(pause);
  ours.end();
  Pass(pause);
  TRACE_EVENT_END("app");
  Pass(pause);
}

static void Rounds(int rounds, const Copy& ours, const Copy& other) {
  for (int round = 0; round < rounds; round++) Round(ours, other, 1000);
  // Slices in which the thread runs for 20 ms and sleeps for 20 ms.
  TRACE_EVENT_BEGIN("app", "sdk work");
  ours.begin("our work");
  Pass(20000000, ThreadNow);
  usleep(20000);
  ours.end();
  TRACE_EVENT_END("app");
  perfetto::TrackEvent::Flush();
}

// Compares the SDK's clock with a copy's clock, for some seconds. Each reading of the copy's clock is between two readings
// of the SDK's clock; measures how far it is outside of these two. A copy looks at the system's clock only while it writes.
static void Compare(const char* name, const Copy& copy) {
  const int kPairs = 1000000;
  uint64_t most = 0;
  int above = 0;
  for (int pair = 0; pair < kPairs; pair++) {
    if (pair % 1000 == 0) {
      copy.begin("tick");
      usleep(3000);
      copy.end();
    }
    uint64_t before = Now(), now = copy.now(), after = Now();
    uint64_t off = now < before ? before - now : now > after ? now - after : 0;
    most = std::max(most, off);
    above += off >= 1000;
  }
  printf("%s: %llu ns at most, %d of %d pairs differ by 1 us\n", name, static_cast<unsigned long long>(most), above, kPairs);
}

static int Both(char** argv) {
  perfetto::TracingInitArgs args;
  args.backends = perfetto::kSystemBackend;
  perfetto::Tracing::Initialize(args);
  perfetto::TrackEvent::Register();
  Copy ours(argv[3]), other(argv[4]);
  ours.connect();
  other.connect();
  for (int waited = 0; !TRACE_EVENT_CATEGORY_ENABLED("app") || !ours.is_on() || !other.is_on(); waited++) {
    if (waited == 6000) return 1;
    usleep(10000);
  }
  int rounds = atoi(argv[2]);
  Rounds(rounds, ours, other);
  std::thread(Rounds, rounds, ours, other).join();
  Compare("ours", ours);
  Compare("other", other);
  if (!strcmp(argv[1], "both")) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
      // The SDK has no threads in a child.
      ours.begin("forked");
      Pass(1000);
      ours.end();
      char last[] = "last";
      argv[1] = last;
      execv("/proc/self/exe", argv);
      _exit(1);
    }
    int status = 1;
    waitpid(child, &status, 0);
    if (status != 0) return 1;
  }
  // Returns when the service has all events.
  perfetto::TrackEvent::Flush();
  puts("done");
  fflush(stdout);
  if (!strcmp(argv[1], "last")) return 0;
  for (;;) pause();
}

int main(int argc, char** argv) {
  if (argc == 5) return Both(argv);
  if (argc != 3) return 2;
  if (!strcmp(argv[1], "options")) return Options(atoi(argv[2]));
  return strcmp(argv[1], "produce") ? Serve(argv[1], argv[2]) : Produce(atoi(argv[2]));
}
