// Perfetto's tracing service on two sockets: service PRODUCERS CONSUMERS
// Says "ready" once it listens; runs until it is killed.
#include "perfetto_c.cc"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  perfetto::base::UnixTaskRunner tasks;
  auto service = perfetto::ServiceIPCHost::CreateInstance(&tasks);
  if (!service->Start(argv[1], argv[2])) return 1;
  puts("ready");
  fflush(stdout);
  tasks.Run();
}
