// A web server for one page on the loopback interface: what `--prometheus --listen PORT` is. One client at a time; a client
// whose request has not come, or that has not taken its answer, in five seconds (ten, if bytes come just then) is dropped.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace vma::stats {

// One client, who may send anything.
void answer(int client, const std::function<std::string()>& text);
// Answers GET /metrics with text() until the process ends. Returns an errno: the port cannot be listened on. `ready` is
// called with the port once it can be connected to (port 0: the kernel chose one).
int serve_metrics(uint16_t port, const std::function<std::string()>& text,
                  const std::function<void(uint16_t)>& ready);

}  // namespace vma::stats
