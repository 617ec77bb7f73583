// The bytes of a token in a text.
#pragma once

#include <cstdint>
#include <string>

struct llama_vocab;

namespace strata {

// May end inside a UTF-8 character. `special`: control tokens have their name as text, else none.
std::string TokenPiece(const llama_vocab* vocab, int32_t token, bool special);

}  // namespace strata
