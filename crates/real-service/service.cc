// Perfetto's own code as a program:
//   service PRODUCERS CONSUMERS   the tracing service on two sockets; prints "ready" once it listens, and runs until it is killed
//   service produce EVENTS        the SDK as a producer of the service that PERFETTO_PRODUCER_SOCK_NAME names
//   service options EVENTS        the same, in the first session that starts: an instant of each category, events with what sessions
//                                 can filter, and EVENTS instants "tick"; then prints "done"
#include "perfetto_c.cc"

#include <atomic>

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

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  if (!strcmp(argv[1], "options")) return Options(atoi(argv[2]));
  return strcmp(argv[1], "produce") ? Serve(argv[1], argv[2]) : Produce(atoi(argv[2]));
}
