#include "node/api/infill_prompt.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/request/request_status.h"

namespace strata {

absl::Status FillPrompts(const wire::ModelStatus& model, ApiRequest* request) {
  if (!model.has_fill_in_middle()) {
    return BadParam("suffix", absl::StrCat(model.name(), " has no tokens to fill in the middle"));
  }
  const wire::FillInMiddle& fill = model.fill_in_middle();
  const ApiInfill& infill = *request->infill;
  std::string files;
  for (const ApiInfill::File& file : infill.files) {
    if (fill.file_separator().empty()) {
      absl::StrAppend(&files, "\n\n", file.name, "\n\n", file.text);
    } else {
      absl::StrAppend(&files, fill.file_separator(), file.name, "\n", file.text);
    }
  }
  if (!files.empty()) absl::StrAppend(&files, fill.file_separator(), "\n");
  for (ApiPrompt& prompt : request->prompts) {
    if (!prompt.tokens.empty()) {
      return BadParam("suffix", "is of a prompt that is text, not tokens");
    }
    prompt.text = absl::StrCat(files, fill.prefix(), prompt.text, fill.suffix(), infill.suffix,
                               fill.middle());
  }
  return absl::OkStatus();
}

}  // namespace strata
