// Perfetto's own code as a program:
//   service PRODUCERS CONSUMERS   the tracing service on two sockets; prints "ready" once it listens, and runs until it is killed
//   service produce EVENTS        the SDK as a producer of the service that PERFETTO_PRODUCER_SOCK_NAME names
#include "perfetto_c.cc"

PERFETTO_DEFINE_CATEGORIES(perfetto::Category("app"));
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

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  return strcmp(argv[1], "produce") ? Serve(argv[1], argv[2]) : Produce(atoi(argv[2]));
}
