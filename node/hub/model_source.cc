#include "node/hub/model_source.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "transport/base/printable_text.h"

namespace strata {
namespace {

constexpr size_t kPartBytesMax = 128;  // of "org", of "repo", of a tag
constexpr absl::string_view kMainRevision = "main";

absl::Status Wrong(absl::string_view name, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(PrintableText::From(name).str(), ": ", why));
}

// The names of repositories, organisations, tags and quants.
bool IsNamePart(absl::string_view part) {
  if (part.empty() || part.size() > kPartBytesMax || !absl::ascii_isalnum(part[0])) return false;
  return !absl::StrContains(part, "..") && std::all_of(part.begin(), part.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
  });
}

// A file's path in a repository: it may be a path below any folder, too.
bool IsFilePath(absl::string_view path) {
  for (const absl::string_view part : absl::StrSplit(path, '/')) {
    if (part.empty() || part == "." || part == "..") return false;
  }
  return std::all_of(path.begin(), path.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f && c != '\\';
  });
}

bool EndsWithGguf(absl::string_view text) { return absl::EndsWithIgnoreCase(text, ".gguf"); }

// The text that %XX in a URL stand for; nullopt where one is no byte.
bool Decode(absl::string_view text, std::string* to) {
  to->clear();
  for (size_t i = 0; i < text.size(); ++i) {
    std::string byte;
    if (text[i] != '%') {
      to->push_back(text[i]);
    } else if (i + 2 < text.size() && absl::HexStringToBytes(text.substr(i + 1, 2), &byte)) {
      *to += byte;
      i += 2;
    } else {
      return false;
    }
  }
  return true;
}

// "org/repo", "org/repo:quant" or "org/repo/folder/file.gguf".
absl::StatusOr<ModelSource> ParseRepo(absl::string_view name, absl::string_view rest) {
  ModelSource source = {.kind = ModelSource::Kind::kHuggingFace,
                        .revision = std::string(kMainRevision)};
  const std::vector<absl::string_view> parts = absl::StrSplit(rest, absl::MaxSplits('/', 2));
  if (parts.size() < 2) return Wrong(name, "a repository is ORG/REPO, as in hf:org/repo");
  absl::string_view repo = parts[1];
  if (parts.size() == 3) {
    if (!IsFilePath(parts[2]) || !EndsWithGguf(parts[2])) {
      return Wrong(name, "what follows the repository is the path of a .gguf file in it");
    }
    source.file = parts[2];
  } else if (const size_t colon = repo.find(':'); colon != repo.npos) {
    source.quant = repo.substr(colon + 1);
    repo = repo.substr(0, colon);
    if (!IsNamePart(source.quant)) return Wrong(name, "the quant behind ':' is as in :Q4_K_M");
    if (EndsWithGguf(source.quant)) source.file = std::exchange(source.quant, "");
  }
  if (!IsNamePart(parts[0]) || !IsNamePart(repo)) {
    return Wrong(name,
                 "a repository is ORG/REPO[:QUANT], each of letters, digits and '.', '-', '_'");
  }
  source.repo = absl::StrCat(parts[0], "/", repo);
  return source;
}

// The part of an address behind https://huggingface.co/.
absl::StatusOr<ModelSource> ParseHubPage(absl::string_view name, absl::string_view page) {
  page = page.substr(0, page.find_first_of("?#"));
  page = absl::StripSuffix(page, "/");
  const std::vector<absl::string_view> parts = absl::StrSplit(page, absl::MaxSplits('/', 4));
  if (parts.size() < 3) return ParseRepo(name, page);
  auto source = ParseRepo(name, absl::StrCat(parts[0], "/", parts[1]));
  if (!source.ok()) return source.status();
  const bool is_file = parts[2] == "resolve" || parts[2] == "blob";
  if ((!is_file && parts[2] != "tree") || parts.size() < (is_file ? 5u : 4u)) {
    return Wrong(name, "of a repository's pages those of its files have a model: …/blob/main/FILE");
  }
  if (!Decode(parts[3], &source->revision) || !IsFilePath(source->revision)) {
    return Wrong(name, "its revision is no branch, tag or commit");
  }
  if (!is_file) return source;
  if (!Decode(parts[4], &source->file) || !IsFilePath(source->file) ||
      !EndsWithGguf(source->file)) {
    return Wrong(name, "is not the address of a .gguf file");
  }
  return source;
}

absl::StatusOr<ModelSource> ParseUrl(absl::string_view name) {
  const absl::string_view rest = name.substr(name.find("://") + 3);
  const absl::string_view host = rest.substr(0, rest.find_first_of("/?#"));
  const absl::string_view path = rest.substr(host.size());
  const std::string lower = absl::AsciiStrToLower(host);
  if (lower == "huggingface.co" || lower == "www.huggingface.co" || lower == "hf.co") {
    return ParseHubPage(name, absl::StripPrefix(path, "/"));
  }
  if (host.empty() || absl::StrContains(host, '@')) {
    return Wrong(name, "an address is https://HOST/PATH/FILE.gguf, without a user or password");
  }
  std::string decoded;
  if (!Decode(path.substr(0, path.find_first_of("?#")), &decoded) ||
      !absl::StartsWith(decoded, "/") || !IsFilePath(decoded.substr(1))) {
    return Wrong(name, "an address is https://HOST/PATH/FILE.gguf");
  }
  if (!EndsWithGguf(decoded)) {
    return Wrong(name,
                 "is not the address of a .gguf file; a web page is none, and other formats are "
                 "converted first (convert_hf_to_gguf.py of llama.cpp)");
  }
  return ModelSource{.kind = ModelSource::Kind::kUrl,
                     .url = std::string(name.substr(0, name.find('#')))};
}

absl::StatusOr<ModelSource> ParseOllama(absl::string_view name, absl::string_view rest) {
  ModelSource source = {.kind = ModelSource::Kind::kOllama, .tag = "latest"};
  if (const size_t colon = rest.find(':'); colon != rest.npos) {
    source.tag = rest.substr(colon + 1);
    rest = rest.substr(0, colon);
  }
  const std::vector<absl::string_view> parts = absl::StrSplit(rest, '/');
  if (parts.size() > 2 || !std::all_of(parts.begin(), parts.end(), IsNamePart) ||
      !IsNamePart(source.tag)) {
    return Wrong(name, "a model of Ollama's is ollama:NAME[:TAG] or ollama:USER/NAME[:TAG]");
  }
  source.repo = parts.size() == 1 ? absl::StrCat("library/", rest) : std::string(rest);
  return source;
}

}  // namespace

std::string ModelSource::Name() const {
  switch (kind) {
    case Kind::kUrl:
      return url.substr(0, url.find('?'));  // a signature is nobody's business
    case Kind::kOllama:
      return absl::StrCat("ollama:", absl::StripPrefix(repo, "library/"), ":", tag);
    case Kind::kHuggingFace:
      break;
  }
  return absl::StrCat("hf:", repo, file.empty() ? "" : "/", file, quant.empty() ? "" : ":", quant);
}

absl::StatusOr<ModelSource> ParseModelSource(absl::string_view name) {
  absl::string_view rest = name;
  const bool is_url =
      absl::StartsWithIgnoreCase(name, "https://") || absl::StartsWithIgnoreCase(name, "http://");
  const bool is_hub = absl::ConsumePrefix(&rest, "hf:") || absl::ConsumePrefix(&rest, "hf.co/") ||
                      absl::ConsumePrefix(&rest, "huggingface.co/");
  const bool is_ollama = !is_hub && absl::ConsumePrefix(&rest, "ollama:");
  if (is_url || is_hub || is_ollama) {
    if (name.size() > kModelNameBytesMax) {
      return Wrong(name.substr(0, 40),
                   absl::StrCat("a model's name has at most ", kModelNameBytesMax, " bytes"));
    }
    if (std::any_of(name.begin(), name.end(),
                    [](unsigned char c) { return c <= 0x20 || c == 0x7f; })) {
      return Wrong(name, "a model's name has no spaces and no control characters");
    }
    if (is_url) return ParseUrl(name);
    if (is_ollama) return ParseOllama(name, rest);
    if (absl::StartsWith(name, "hf:")) return ParseRepo(name, rest);
    return ParseHubPage(name, rest);
  }
  // Without a prefix, all that cannot be a repository is left to others.
  const size_t slashes = static_cast<size_t>(std::count(name.begin(), name.end(), '/'));
  if (slashes > 0 && (slashes > 1) == EndsWithGguf(name)) {
    if (auto source = ParseRepo(name, name); source.ok()) {
      source->may_be_a_path = true;
      return source;
    }
  }
  return absl::NotFoundError(
      absl::StrCat(name.empty() ? "''" : PrintableText::From(name).str(),
                   " is not the name of a model on the network: "
                   "those are hf:ORG/REPO, ollama:NAME and https://HOST/FILE.gguf"));
}

}  // namespace strata
