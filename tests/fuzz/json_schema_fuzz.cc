// Any text as a JSON Schema, and as a grammar: a schema becomes a grammar that libllama can take,
// and a grammar that was read and printed reads back the same.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/string_view.h"
#include "node/grammar/json_schema_grammar.h"
#include "shard/sampling/gbnf.h"

namespace strata {
namespace {

void Check(bool right) {
  if (!right) std::abort();
}

void CheckError(const absl::Status& status) {
  Check(absl::IsInvalidArgument(status) && !status.message().empty());
}

absl::StatusOr<std::string> GrammarOf(absl::string_view text) {
  const absl::StatusOr<SchemaJson> schema = ParseSchema(text, "schema");
  if (!schema.ok()) return schema.status();
  JsonGrammar grammar;
  absl::StatusOr<GbnfExpr> root = grammar.Schema(*schema, "schema");
  if (!root.ok()) return root.status();
  return grammar.Finish(*std::move(root), "schema");
}

void TrySchema(absl::string_view text) {
  const absl::StatusOr<std::string> grammar = GrammarOf(text);
  if (!grammar.ok()) {
    CheckError(grammar.status());
    return;
  }
  Check(grammar->size() <= kGrammarBytesMax);
  const absl::StatusOr<GbnfGrammar> read = ParseGbnf(*grammar);
  Check(read.ok());
  Check(CheckGbnf(*read).ok());
}

void TryGrammar(absl::string_view text) {
  const absl::StatusOr<GbnfGrammar> grammar = ParseGbnf(text);
  if (!grammar.ok()) {
    CheckError(grammar.status());
    return;
  }
  if (absl::Status status = CheckGbnf(*grammar); !status.ok()) CheckError(status);
  for (size_t rule : EndlessGbnfRules(*grammar)) Check(rule < grammar->rules.size());
  const std::string printed = PrintGbnf(*grammar);
  if (printed.size() > kGrammarBytesMax)
    return;  // escapes are longer than the characters they stand for
  const absl::StatusOr<GbnfGrammar> again = ParseGbnf(printed);
  Check(again.ok());
  Check(PrintGbnf(*again) == printed);
}

}  // namespace
}  // namespace strata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  strata::TrySchema(text);
  strata::TryGrammar(text);
  return 0;
}
