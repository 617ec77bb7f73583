// A chat template's source: the first two bytes are its length, the rest is what a person wrote.
// Templates may recurse and loop as they like, so they run where a node runs them, in processes of
// the pool with small limits: whatever they do there, the pool answers once, in words where it
// refuses, and goes on. Nothing is seen of what they reach in there, so the corpus has to say much.
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
  TemplateRequest question;
  question.source = {.text = std::string(source), .bos = "<s>", .eos = "</s>"};
  question.messages = {{.role = "system", .content = "Be brief."},
                       {.role = "user", .content = std::string(said)},
                       {.role = "assistant", .content = "Yes."},
                       {.role = "user", .content = "Go on."}};
  question.now = absl::UnixEpoch();
  absl::Notification answered;
  absl::StatusOr<ChatTemplate::Prompt> prompt;
  ThePool()->Render({}, std::move(question), [&](absl::StatusOr<ChatTemplate::Prompt> made) {
    CHECK(!answered.HasBeenNotified());
    prompt = std::move(made);
    answered.Notify();
  });
  answered.WaitForNotification();
  if (prompt.ok()) {
    CHECK(prompt->text.size() <= kChatPromptBytesMax);
  } else {
    // On a machine that is busy a process may not have started in time.
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
  // Refusals say nothing where no template can run.
  [[maybe_unused]] static const bool runs = [] {
    CHECK_OK(strata::Render("{{ messages[1].content }}", "hello"));
    return true;
  }();
  absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const size_t source = std::min(strata::fuzz::TakeSize(&bytes), bytes.size());
  strata::Render(bytes.substr(0, source), bytes.substr(source)).IgnoreError();
  return 0;
}
