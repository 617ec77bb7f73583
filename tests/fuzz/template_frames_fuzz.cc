// Any bytes as the answer of a process that ran a stranger's chat template: they are a sound answer
// or refused. Templates themselves are not fed here: that process contains what they do to Jinja2
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
  if (const auto result = DecodeTemplateResult(bytes); !result.ok()) {
    Check(absl::IsDataLoss(result.status()));
  } else {
    const auto again = DecodeTemplateResult(EncodeTemplateResult(*result));
    Check(again.ok() && again->is_read == result->is_read);
    Check(again->prompt.status() == result->prompt.status());
    if (result->prompt.ok()) Check(again->prompt->text == result->prompt->text);
  }
  if (const auto request = DecodeTemplateRequest(bytes); request.ok()) {
    const auto again = DecodeTemplateRequest(EncodeTemplateRequest(*request));
    Check(again.ok() && again->messages.size() == request->messages.size());
    Check(again->source.text == request->source.text && again->now == request->now);
  }
  return 0;
}
