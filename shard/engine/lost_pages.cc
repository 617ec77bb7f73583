#include "shard/engine/lost_pages.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace strata {
namespace {

constexpr size_t kMessageBytesMax = 4096;
// Written by one thread, read by the handler; the length goes last.
char message[kMessageBytesMax];
std::atomic<size_t> message_bytes{0};

void OnBusError(int, siginfo_t* info, void*) {
  if (info->si_code != BUS_ADRERR) return;  // not a page fault
  // A failed write cannot be handled here.
  [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, message, message_bytes);
}

}  // namespace

void ReportLostPages(const std::string& path) {
  const std::string line = absl::StrCat(
      "a part of a mapped file cannot be read: ", path,
      " became shorter while the model was in use, or its disk failed; restore the file and load "
      "the model again\n");
  message_bytes = 0;
  const size_t bytes = std::min(line.size(), kMessageBytesMax);
  memcpy(message, line.data(), bytes);
  message_bytes = bytes;
  struct sigaction action = {};
  action.sa_sigaction = OnBusError;
  // SA_RESETHAND: after the handler returns, the same access ends the process.
  action.sa_flags = SA_SIGINFO | SA_RESETHAND;
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace strata
