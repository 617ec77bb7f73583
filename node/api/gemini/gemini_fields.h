// Fields of Gemini's JSON, which is that of protocol buffers: each has two names. Pure.
#pragma once

#include "node/grammar/json_schema.h"

namespace strata {

// A member by its name, "generationConfig", or its other name, "generation_config". Null: `json` is
// no object, or the member is missing or null.
const SchemaJson* GeminiField(const SchemaJson& json, const char* name);

// A schema in Gemini's form (https://ai.google.dev/api/caching#Schema) as a JSON Schema: its types
// are in capitals, and "nullable" adds one.
SchemaJson GeminiSchema(const SchemaJson& schema);

}  // namespace strata
