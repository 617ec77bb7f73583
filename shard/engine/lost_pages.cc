#include "shard/engine/lost_pages.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace strata {
namespace {

constexpr size_t kWordsBytesMax = 4096;
// Written by one thread, read by the handler; the length goes last.
char words[kWordsBytesMax];
std::atomic<size_t> words_bytes{0};

void OnBusError(int, siginfo_t* info, void*) {
  if (info->si_code != BUS_ADRERR) return;  // no page's fault
  // Nothing can be done where this fails.
  [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, words, words_bytes);
}

}  // namespace

void TellOfLostPages(const std::string& path) {
  const std::string text = absl::StrCat(
      "a part of a mapped file cannot be read: ", path,
      " became shorter while the model was computed with, or its disk failed; put the file back in "
      "its place and load the model again\n");
  words_bytes = 0;
  const size_t bytes = std::min(text.size(), kWordsBytesMax);
  memcpy(words, text.data(), bytes);
  words_bytes = bytes;
  struct sigaction action = {};
  action.sa_sigaction = OnBusError;
  // When it returns, the same access ends the process.
  action.sa_flags = SA_SIGINFO | SA_RESETHAND;
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace strata
