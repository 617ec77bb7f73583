#include "node/hub/aliases.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "node/hub/model_source.h"
#include "transport/base/printable_text.h"
#include "transport/base/state_file.h"
#include "transport/base/utf8.h"
#include "transport/security/private_file.h"

namespace strata {
namespace {

using Json = nlohmann::json;
using Note = std::function<void(const std::string&)>;

constexpr int kAliasFileVersion = 1;

std::string AliasPath(const std::string& data_dir) { return data_dir + "/aliases.json"; }

absl::Status CheckAliasTarget(absl::string_view target) {
  if (target.empty() || target.size() > kModelNameBytesMax || ValidUtf8(target) != target ||
      absl::c_any_of(target, absl::ascii_iscntrl)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "an alias stands for a model's name: text without control characters, of at most ",
        kModelNameBytesMax, " bytes"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Aliases> ParseAliases(const std::string& path, const std::string& text) {
  absl::Status damaged = absl::DataLossError(path + " is damaged");
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return damaged;
  const Json version = json.value("version", Json());
  if (!version.is_number_integer() || version < 1) return damaged;
  if (version > kAliasFileVersion) {
    return absl::FailedPreconditionError(
        path + " is of a newer Strata: update this one, or remove the file");
  }
  const auto found = json.find("aliases");
  if (found == json.end() || !found->is_object() || found->size() > kAliasesMax) return damaged;
  Aliases aliases;
  for (const auto& [name, target] : found->items()) {
    if (!CheckAliasName(name).ok() || !target.is_string() ||
        !CheckAliasTarget(target.get<std::string>()).ok()) {
      return damaged;
    }
    aliases[absl::AsciiStrToLower(name)] = target;
  }
  return aliases;
}

// Reads, changes and writes the file while no other process does.
absl::Status ChangeAliases(const std::string& data_dir, const Note& note,
                           absl::FunctionRef<absl::Status(Aliases*)> change) {
  if (auto s = MakePrivateFolder(data_dir); !s.ok()) return s;
  const auto lock = LockFile(AliasPath(data_dir) + ".lock");
  if (!lock.ok()) return lock.status();
  auto aliases = OpenAliases(data_dir, note);
  if (!aliases.ok()) return aliases.status();
  if (auto s = change(&*aliases); !s.ok()) return s;
  const Json json = {{"version", kAliasFileVersion}, {"aliases", *aliases}};
  return WritePrivateFile(AliasPath(data_dir), json.dump(2) + "\n", PrivateFileMode::kReplace);
}

}  // namespace

absl::StatusOr<Aliases> ReadAliases(const std::string& data_dir) {
  const std::string path = AliasPath(data_dir);
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error) return Aliases();
  std::ifstream file(path, std::ios::binary);
  if (error || !file.is_open()) return absl::PermissionDeniedError(path + " cannot be read");
  std::string text(kPrivateFileBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || file.gcount() > static_cast<std::streamsize>(kPrivateFileBytesMax)) {
    return absl::DataLossError(path + " is damaged");
  }
  text.resize(static_cast<size_t>(file.gcount()));
  return ParseAliases(path, text);
}

absl::StatusOr<Aliases> OpenAliases(const std::string& data_dir, const Note& note) {
  auto aliases = ReadAliases(data_dir);
  if (!absl::IsDataLoss(aliases.status())) return aliases;
  const auto aside = SetAside(AliasPath(data_dir));
  if (!aside.ok()) return aside.status();
  note(absl::StrCat(aliases.status().message(), ", and is ", *aside, " now: there are no aliases"));
  return Aliases();
}

std::string AliasTarget(const Aliases& aliases, absl::string_view name) {
  const auto found = aliases.find(absl::AsciiStrToLower(name));
  return found == aliases.end() ? "" : found->second;
}

absl::Status CheckAliasName(absl::string_view name) {
  if (!name.empty() && name.size() <= kAliasBytesMax && absl::ascii_isalnum(name[0]) &&
      !absl::StrContains(name, "..") && !absl::EndsWithIgnoreCase(name, ".gguf") &&
      absl::c_all_of(name, [](char c) {
        return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
      })) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      PrintableText::From(name, kAliasBytesMax).str(), ": an alias is at most ", kAliasBytesMax,
      " letters, digits and '-', '_', '.', begins with a letter or digit, and is no .gguf file"));
}

absl::Status AddAlias(const std::string& data_dir, const std::string& name,
                      const std::string& target, const Note& note) {
  if (auto s = CheckAliasName(name); !s.ok()) return s;
  if (auto s = CheckAliasTarget(target); !s.ok()) return s;
  if (absl::EqualsIgnoreCase(name, target)) {
    return absl::InvalidArgumentError(name + " would stand for itself");
  }
  return ChangeAliases(data_dir, note, [&](Aliases* aliases) {
    if (const std::string is = AliasTarget(*aliases, name); !is.empty()) {
      return absl::AlreadyExistsError(absl::StrCat(
          name, " stands for ", is, " already; strata alias --remove ", name, " makes it free"));
    }
    if (const std::string is = AliasTarget(*aliases, target); !is.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(target, " is an alias itself: name what it stands for, ", is));
    }
    for (const auto& [other, is] : *aliases) {
      if (absl::EqualsIgnoreCase(is, name)) {
        return absl::InvalidArgumentError(absl::StrCat(
            other, " stands for ", name, ", which is no alias then: choose another name"));
      }
    }
    if (aliases->size() >= kAliasesMax) {
      return absl::ResourceExhaustedError(
          absl::StrCat("there are ", kAliasesMax, " aliases already; remove one first"));
    }
    (*aliases)[absl::AsciiStrToLower(name)] = target;
    return absl::OkStatus();
  });
}

absl::Status RemoveAlias(const std::string& data_dir, const std::string& name, const Note& note) {
  return ChangeAliases(data_dir, note, [&](Aliases* aliases) {
    if (aliases->erase(absl::AsciiStrToLower(name)) > 0) return absl::OkStatus();
    return absl::NotFoundError(
        absl::StrCat(PrintableText::From(name).str(), " is no alias; strata alias lists them"));
  });
}

void SetAliases(const Aliases& aliases, absl::Span<LocalModel> models) {
  for (const auto& [alias, target] : aliases) {
    const auto found = FindLocalModel(models, target);
    if (!found.ok()) continue;
    const auto model =
        absl::c_find_if(models, [&](const LocalModel& each) { return each.path == found->path; });
    model->aliases.push_back(alias);
  }
}

}  // namespace strata
