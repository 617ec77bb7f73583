// A chat template's source: the first two bytes are its length, the rest is the user's message.
// Templates may recurse and loop endlessly, so they run as in a node, in processes of the pool with
// small limits: for each the pool answers once, with a message where it refuses, and goes on. The
// fuzzer sees no coverage of those processes, so the corpus has to be rich.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/log/check.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "node/chat/template_pool.h"
#include "node/chat/template_process.h"
#include "tests/fuzz/service_calls.h"

namespace strata {
namespace {

constexpr TemplateLimits kLimits = {.time_ms = 200, .memory_bytes = 64ull << 20};

TemplatePool* ThePool() {
  static TemplatePool* const pool = [] {
    fuzz::BeQuiet();
    auto* made = new TemplatePool({.processes_max = 1, .limits = kLimits});
    std::atexit([] { delete ThePool(); });
    return made;
  }();
  return pool;
}

absl::Status Render(absl::string_view source, absl::string_view said) {
  TemplateRequest request;
  request.source = {.text = std::string(source), .bos = "<s>", .eos = "</s>"};
  request.messages = {{.role = "system", .content = "Be brief."},
                      {.role = "user", .content = std::string(said)},
                      {.role = "assistant", .content = "Yes."},
                      {.role = "user", .content = "Go on."}};
  request.now = absl::UnixEpoch();
  absl::Notification answered;
  absl::StatusOr<ChatTemplate::Prompt> prompt;
  ThePool()->Render({}, std::move(request), [&](absl::StatusOr<ChatTemplate::Prompt> made) {
    CHECK(!answered.HasBeenNotified());
    prompt = std::move(made);
    answered.Notify();
  });
  answered.WaitForNotification();
  if (prompt.ok()) {
    CHECK(prompt->text.size() <= kChatPromptBytesMax);
  } else {
    // On a busy machine a process may not have started in time.
    CHECK(absl::IsInvalidArgument(prompt.status()) || absl::IsUnavailable(prompt.status()))
        << prompt.status();
    CHECK(!prompt.status().message().empty());
  }
  return prompt.status();
}

}  // namespace
}  // namespace strata

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc < 2 || absl::string_view((*argv)[1]) != "template") return 0;
  std::_Exit(strata::RunTemplateProcess(strata::kLimits).ok() ? 0 : 1);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Refusals would show nothing where no template can run.
  [[maybe_unused]] static const bool runs = [] {
    CHECK_OK(strata::Render("{{ messages[1].content }}", "hello"));
    return true;
  }();
  absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const size_t source = std::min(strata::fuzz::TakeSize(&bytes), bytes.size());
  strata::Render(bytes.substr(0, source), bytes.substr(source)).IgnoreError();
  return 0;
}
