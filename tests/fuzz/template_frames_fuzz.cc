// What a process that ran a stranger's chat template may say: any bytes are an answer that is sound
// or none. Templates themselves are not fed here: what they do to minja is what that process is for
// (tests/node/chat/template_pool_test.cc).
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/string_view.h"
#include "node/chat/template_frames.h"

namespace strata {
namespace {

void Check(bool right) {
  if (!right) std::abort();
}

}  // namespace
}  // namespace strata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strata;  // NOLINT(google-build-using-namespace): one function
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (const auto answer = DecodeTemplateResult(bytes); !answer.ok()) {
    Check(absl::IsDataLoss(answer.status()));
  } else {
    const auto again = DecodeTemplateResult(EncodeTemplateResult(*answer));
    Check(again.ok() && again->is_read == answer->is_read);
    Check(again->prompt.status() == answer->prompt.status());
    if (answer->prompt.ok()) Check(again->prompt->text == answer->prompt->text);
  }
  if (const auto question = DecodeTemplateRequest(bytes); question.ok()) {
    const auto again = DecodeTemplateRequest(EncodeTemplateRequest(*question));
    Check(again.ok() && again->messages.size() == question->messages.size());
    Check(again->source.text == question->source.text && again->now == question->now);
  }
  return 0;
}
