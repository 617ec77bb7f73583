// A template of Jinja, rendered by Jinja2 itself with the settings of Hugging Face's tokenizers: so
// the text is the one that models were trained on. CPython runs in this process for it; it reads
// nothing of the environment and no packages of the user. Thread-safe; one thread at a time
// renders.
//
// Templates are not trusted: Jinja2's ImmutableSandboxedEnvironment keeps them from the
// interpreter, and SealJinja() the interpreter from the system. Neither limits time or memory
// (node/chat/template_process.h).
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace strata {

// Starts the interpreter, unless it runs. It lives as long as the process.
// kUnavailable: Python's library or Jinja2 cannot be loaded, and why.
absl::Status StartJinja();

// From now on the interpreter imports, opens, starts and connects nothing: what would fails.
// REQUIRES: StartJinja() was OK.
void SealJinja();

class JinjaTemplate {
 public:
  // kInvalidArgument: the source is not a template, in Jinja2's words. kResourceExhausted: there is
  // not enough memory. kUnavailable: StartJinja()'s.
  static absl::StatusOr<std::unique_ptr<const JinjaTemplate>> Parse(absl::string_view source);
  ~JinjaTemplate();

  // Whether it looks up a variable of this name, which it does not set itself.
  bool UsesVariable(const char* name) const;
  // Whether it names a member of some object so, or a string.
  bool UsesField(const char* name) const;

  // `variables`: an object; `now`: what strftime_now() says, in local time.
  // kInvalidArgument: an error of the template's, or one that it raised, in its words.
  // kResourceExhausted: there is not enough memory.
  absl::StatusOr<std::string> Render(const nlohmann::ordered_json& variables, absl::Time now) const;

 private:
  struct State;
  explicit JinjaTemplate(std::unique_ptr<State> state);

  const std::unique_ptr<State> state_;
};

}  // namespace strata
