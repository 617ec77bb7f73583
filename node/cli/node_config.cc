#include "node/cli/node_config.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "node/base/standard_output.h"
#include "node/cli/cli_verbs.h"
#include "node/daemon/node.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

constexpr char kSystemConfig[] = "/etc/strata/node.toml";

std::string OwnConfig() {
  const std::string folder = ConfigFolder();
  return folder.empty() ? "" : folder + "/strata/node.toml";
}

bool IsThere(const std::string& path) {
  std::error_code error;
  return !path.empty() && fs::exists(path, error);
}

// Help and the like cannot be in a file.
bool MayBeInFile(const CLI::Option& option) {
  return option.get_configurable() && !option.get_lnames().empty();
}

bool IsFlag(const CLI::Option& option) { return option.get_items_expected_max() == 0; }

// Whether the command line has the option or one that it cannot go with.
bool IsOverridden(const CLI::Option& option) {
  return option.count() > 0 || absl::c_any_of(option.get_excludes(), [](const CLI::Option* other) {
           return other->count() > 0;
         });
}

// As TOML writes it.
std::string Value(const CLI::Option& option) {
  if (IsFlag(option)) return "true";
  std::string value =
      option.get_default_str().empty() ? option.get_type_name() : option.get_default_str();
  double number = 0;
  if (absl::SimpleAtod(value, &number)) return value;
  return option.get_items_expected_max() > 1 ? absl::StrCat("[\"", value, "\"]")
                                             : absl::StrCat("\"", value, "\"");
}

}  // namespace

std::string ConfigFolder() {
  const char* const config = std::getenv("XDG_CONFIG_HOME");
  if (config != nullptr && config[0] == '/') return config;
  const char* const home = std::getenv("HOME");
  return home == nullptr || home[0] != '/' ? "" : absl::StrCat(home, "/.config");
}

std::string NodeConfigPath(const std::string& given) {
  if (!given.empty()) return given;
  if (const char* const named = std::getenv("STRATA_CONFIG"); named != nullptr) return named;
  std::string own = OwnConfig();
  if (geteuid() != 0 && IsThere(own)) return own;
  return IsThere(kSystemConfig) ? kSystemConfig : "";
}

absl::StatusOr<std::vector<std::string>> ReadNodeConfig(const std::string& path,
                                                        const CLI::App& verb) {
  std::ifstream file(path);
  std::error_code error;
  if (!file || fs::is_directory(path, error)) {
    return absl::NotFoundError(absl::StrCat(path, ": no configuration that can be read"));
  }
  const auto wrong = [&](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", what...));
  };
  std::vector<std::string> words;
  try {
    for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_config(file)) {
      if (item.name == "++" || item.name == "--") continue;  // the ends of a section
      if (!item.parents.empty()) {
        return wrong("[", item.parents.front(), "]: it has no sections; options stand alone");
      }
      const CLI::Option* const option = verb.get_option_no_throw("--" + item.name);
      if (option == nullptr || !MayBeInFile(*option)) {
        return wrong("'", item.name, "' is no option of a node (see strata config new)");
      }
      if (IsOverridden(*option)) continue;
      if (item.inputs.empty()) return wrong("'", item.name, "' has no value");
      for (const std::string& value : item.inputs) {
        const bool is_boolean = value == "true" || value == "false";  // a name alone, too
        if (is_boolean && !IsFlag(*option)) return wrong("'", item.name, "' wants a value");
        if (!is_boolean) {
          words.push_back(absl::StrCat("--", item.name, "=", value));
        } else if (value == "true") {
          words.push_back(absl::StrCat("--", item.name));
        }
      }
    }
  } catch (const CLI::Error& error) {
    return wrong(error.what());
  }
  return words;
}

std::string NodeConfigText(const CLI::App& verb) {
  std::string text =
      "# The configuration of a node: each line is an option of `strata node`, and an option on "
      "its\n"
      "# command line counts in place of the one here. `strata config check` reads it.\n";
  for (const CLI::Option* option : verb.get_options()) {
    if (option->get_group().empty() || !MayBeInFile(*option)) continue;
    absl::StrAppend(&text, "\n# ", option->get_description(), "\n#", option->get_lnames().front(),
                    " = ", Value(*option), "\n");
  }
  return text;
}

absl::Status RunConfigCheck(const ConfigOptions& options) {
  const std::string path = NodeConfigPath(options.file);
  if (path.empty()) {
    return absl::NotFoundError(absl::StrCat("a node reads no configuration: there is neither ",
                                            OwnConfig(), " nor ", kSystemConfig,
                                            "; strata config new prints one to begin with"));
  }
  const absl::StatusOr<NodeOptions> node = ParseNodeOptions({"--config", path});
  if (!node.ok()) return node.status();
  if (absl::Status status = Node::Check(*node); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
  }
  return WriteToStdout(absl::StrCat(path, ": nothing is wrong with it\n"));
}

absl::Status RunConfigNew(const ConfigOptions&) {
  CommandLine line;
  CLI::App app;
  AddVerbs(&app, &line);
  return WriteToStdout(NodeConfigText(*app.get_subcommand("node")));
}

}  // namespace strata
