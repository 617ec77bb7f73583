// Names that people give to models on this machine: aliases.json in the data dir, a JSON object
//
//   {"version": 1, "aliases": {"fast": "hf:org/repo:Q4_K_M"}}
//
// An alias stands for the text of another name, never for another alias. Case does not matter.
// Blocks on the disk; any thread, any process: writers wait for each other.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "node/hub/local_models.h"

namespace strata {

inline constexpr size_t kAliasesMax = 1000;
inline constexpr size_t kAliasBytesMax = 64;

using Aliases = std::map<std::string, std::string>;  // name in lower case -> what it stands for

// Empty: there is no file. kDataLoss: it is damaged; kFailedPrecondition: it is of a newer version.
absl::StatusOr<Aliases> ReadAliases(const std::string& data_dir);
// Where ReadAliases() finds a damaged file, that is renamed, which `note` says, and there are none.
absl::StatusOr<Aliases> OpenAliases(const std::string& data_dir,
                                    const std::function<void(const std::string&)>& note);

// The target of the alias `name`; empty: it is no alias.
std::string AliasTarget(const Aliases& aliases, absl::string_view name);

// kInvalidArgument: letters, digits, '-', '_' and '.' are what a name may have, and at most
// kAliasBytesMax of them.
absl::Status CheckAliasName(absl::string_view name);

// kAlreadyExists: it is an alias, and stays as it is; kInvalidArgument: `name` is bad, or `target`
// is an alias or itself; kResourceExhausted: there are kAliasesMax. Else errors of OpenAliases(),
// or the system's.
absl::Status AddAlias(const std::string& data_dir, const std::string& name,
                      const std::string& target,
                      const std::function<void(const std::string&)>& note);
// kNotFound: there is no such alias.
absl::Status RemoveAlias(const std::string& data_dir, const std::string& name,
                         const std::function<void(const std::string&)>& note);

// Sets the aliases of each of `models`, in order: those that stand for its path, its name, or a
// name that FindLocalModel() finds it by.
void SetAliases(const Aliases& aliases, absl::Span<LocalModel> models);

}  // namespace strata
