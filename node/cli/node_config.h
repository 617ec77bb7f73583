// The configuration file of a node: options of `strata node` by their long names, in TOML
// (toml.io; what CLI11 reads of it: comments, text, numbers, booleans, lists). An option that is
// given on the command line counts in place of the file's.
//
//   name = "kitchen"
//   peer = ["10.8.0.3:7400", "attic:7400"]
//   no-mdns = true
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace CLI {
class App;
}

namespace strata {

struct ConfigOptions {
  std::string file;  // empty: the one that a node reads
};

// ${XDG_CONFIG_HOME:-~/.config}; empty: neither is an absolute path.
std::string ConfigFolder();

// The file that a node reads: `given`, the value of --config; else that of STRATA_CONFIG; else
// ${XDG_CONFIG_HOME:-~/.config}/strata/node.toml, but not root's; else /etc/strata/node.toml.
// Empty: none, as the last two need not be there.
std::string NodeConfigPath(const std::string& given);

// The file's options as words of a command line, but for those that `verb`, strata node, has been
// given, and those that exclude these. Errors name the file; kNotFound: it cannot be read;
// kInvalidArgument: it is no TOML or has what is no option. Values are not checked.
absl::StatusOr<std::vector<std::string>> ReadNodeConfig(const std::string& path,
                                                        const CLI::App& verb);

// A file with all options of `verb`, each a comment with what it means.
std::string NodeConfigText(const CLI::App& verb);

// Prints what is wrong with the file, or that nothing is.
absl::Status RunConfigCheck(const ConfigOptions& options);
// Prints NodeConfigText().
absl::Status RunConfigNew(const ConfigOptions& options);

}  // namespace strata
