// Prints the errors that fewer bytes between stages cause, as a table: the demo's model and random
// ones of several architectures, each cut in three. activation_errors DEMO.gguf
#include "tests/support/activation_errors.h"

#include <cstdio>
#include <string>

#include "absl/strings/str_format.h"
#include "shard/engine/activation_codec.h"
#include "tests/support/model_zoo.h"
#include "tests/support/temp_folder.h"

namespace strata::testing {
namespace {

constexpr uint32_t kDecodes = 160;
constexpr char kPrompt[] =
    "Once upon a time there was a little girl who lived in a small house near the forest. One day "
    "she found";

absl::Status PrintRows(const std::string& name, const std::string& path, const std::string& text) {
  auto probe = ActivationProbe::Open(path);
  if (!probe.ok()) return probe.status();
  if (auto s = (*probe)->Prepare(text, kDecodes); !s.ok()) return s;
  for (const wire::ActivationType type : {wire::F32, wire::F16, wire::BF16, wire::Q8_0}) {
    if (ActivationRowBytes(type, (*probe)->n_embd()) == 0) continue;
    const auto errors = (*probe)->Measure(type);
    if (!errors.ok()) return errors.status();
    absl::PrintF("| %s | %d | %s | %s | %d | %d | %.2g | %.1f | %.2g | %.2g | %.1f %% |\n", name,
                 (*probe)->n_embd(), (*probe)->Cuts(), ActivationTypeName(type),
                 ActivationRowBytes(type, (*probe)->n_embd()), errors->rows, errors->logit_max,
                 errors->logit_largest, errors->kl_mean, errors->kl_max, 100 * errors->top1);
  }
  return absl::OkStatus();
}

absl::Status PrintTable(const std::string& demo) {
  absl::PrintF(
      "| model | width | layers | type | bytes a row | rows | logit error, max | largest logit | "
      "KL divergence, mean | max | same top 1 |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  if (auto s = PrintRows("demo (llama)", demo, kPrompt); !s.ok()) return s;
  for (const char* const wanted : {"llama", "qwen3moe", "gemma3"}) {
    for (const ZooModel& model : ModelZoo()) {
      if (model.name != wanted) continue;
      auto path = WriteRandomModel(SpecOf(model), ProcessTempFolder());
      if (!path.ok()) return path.status();
      if (auto s = PrintRows("random " + model.name, *path, ""); !s.ok()) return s;
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace strata::testing

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: activation_errors DEMO.gguf\n");
    return 2;
  }
  const absl::Status status = strata::testing::PrintTable(argv[1]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "activation_errors: %s\n", std::string(status.message()).c_str());
  return 1;
}
