#include "node/hub/foreign_format.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "node/hub/quant_choice.h"
#include "shard/model/gguf_bytes.h"
#include "transport/base/printable_text.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

constexpr size_t kFolderFilesMax = 10'000;
constexpr size_t kConfigBytesMax = 1 << 20;

// The quantization that a config.json names as transformers, exllamav2 and mlx-lm write it; empty:
// none.
std::string QuantizationOf(const fs::path& config) {
  std::ifstream file(config, std::ios::binary);
  std::string text(kConfigBytesMax, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return "";
  const auto by_transformers = json.find("quantization_config");
  if (by_transformers != json.end() && by_transformers->is_object()) {
    const auto method = by_transformers->find("quant_method");
    if (method != by_transformers->end() && method->is_string()) return method->get<std::string>();
  }
  return json.contains("quantization") ? "MLX" : "";
}

}  // namespace

std::string ForeignFormat::text() const { return absl::StrJoin(names, ", "); }

ForeignFormat ForeignFormatOf(absl::Span<const std::string> files, absl::string_view name) {
  const auto has = [&](absl::string_view ending) {
    return absl::c_any_of(
        files, [&](const std::string& file) { return absl::EndsWithIgnoreCase(file, ending); });
  };
  ForeignFormat format;
  if (has(".safetensors")) format.names.push_back("safetensors");
  if (has(".pth") || has(".pt") || absl::c_any_of(files, [](const std::string& file) {
        return absl::StrContainsIgnoreCase(file, "pytorch_model");
      })) {
    format.names.push_back("PyTorch");
  }
  if (has(".onnx")) format.names.push_back("ONNX");
  if (has(".ggml") || absl::c_any_of(files, [](const std::string& file) {
        return absl::StrContainsIgnoreCase(file, "ggml") && absl::EndsWithIgnoreCase(file, ".bin");
      })) {
    format.names.push_back("GGML");
    format.is_quantized = true;
  }
  for (const absl::string_view kind : {"MLX", "EXL2", "EXL3", "AWQ", "GPTQ", "NVFP4"}) {
    if (!absl::StrContainsIgnoreCase(name, kind)) continue;
    format.names.emplace_back(kind);
    format.is_quantized = true;
  }
  return format;
}

std::string ConversionText(const ForeignFormat& format, absl::string_view folder) {
  return absl::StrCat(
      format.is_quantized ? "convert the model that it was made from" : "convert it",
      " with llama.cpp's convert_hf_to_gguf.py: python3 convert_hf_to_gguf.py ",
      format.is_quantized ? "FOLDER" : folder, " --outfile FILE.gguf --outtype q8_0");
}

std::optional<std::string> WhyNoModel(const std::string& path) {
  std::error_code error;
  const fs::path named(path);
  const bool is_folder = fs::is_directory(named, error);
  if (!is_folder && !fs::is_regular_file(named, error)) return std::nullopt;
  const std::string shown = PrintableText::OfPath(path).str();
  const fs::path folder = is_folder ? named : named.parent_path();
  std::vector<std::string> files;
  if (is_folder) {
    std::vector<HubFile> models;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      files.push_back(it->path().filename().string());
      models.push_back({.name = files.back()});
      if (files.size() == kFolderFilesMax) break;
    }
    absl::c_sort(models, [](const HubFile& a, const HubFile& b) { return a.name < b.name; });
    if (const auto variants = VariantsOf(models); !variants.empty()) {
      return absl::StrCat(
          shown, ": is a folder; name a model's file in it: ",
          PrintableText::OfPath((folder / variants[0].parts[0].name).string()).str(),
          variants.size() > 1 ? absl::StrCat(" or one of ", variants.size() - 1, " more") : "");
    }
  } else {
    std::ifstream file(path, std::ios::binary);
    std::string magic(kGgufMagic.size(), '\0');
    file.read(magic.data(), static_cast<std::streamsize>(magic.size()));
    if (!file || magic == kGgufMagic) return std::nullopt;
    files.push_back(named.filename().string());
  }
  ForeignFormat format = ForeignFormatOf(files, named.filename().string());
  if (format.names.empty()) {
    if (!is_folder) return std::nullopt;
    return shown + ": is a folder; name the model's file in it";
  }
  if (const std::string quantization = QuantizationOf(folder / "config.json");
      !quantization.empty()) {
    const std::string known = PrintableText::From(quantization).str();
    if (!absl::c_any_of(format.names, [&](const std::string& name) {
          return absl::EqualsIgnoreCase(name, known);
        })) {
      format.names.push_back(known);
    }
    format.is_quantized = true;
  }
  return absl::StrCat(shown, ": is no GGUF, but ", format.text(), "; ",
                      ConversionText(format, PrintableText::OfPath(folder.string()).str()),
                      "; or look for one that is there: strata models search NAME");
}

}  // namespace strata
