// Man pages and completions for shells, made from the definition of the command line itself.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace CLI {
class App;
}

namespace strata {

// man(7). `verb`: the page of one verb, with its actions; empty: that of the program.
// kNotFound: there is no such verb.
absl::StatusOr<std::string> ManPage(const CLI::App& app, const std::string& verb);

// For `shell` "bash", "zsh" or "fish": verbs, options, and, from the live cluster, names of nodes
// and models, for which it calls `strata reference nodes` and `… models`.
std::string Completions(const CLI::App& app, const std::string& shell);

// The verbs that have a page, one a line.
std::string VerbNames(const CLI::App& app);

// Prints the names of the nodes or of the models, one a line.
absl::Status PrintNodeNames();
absl::Status PrintModelNames();

}  // namespace strata
