#include "shard/sampling/token_piece.h"

#include <algorithm>

#include "llama.h"

namespace strata {

std::string TokenPiece(const llama_vocab* vocab, int32_t token, bool special) {
  std::string piece(32, '\0');
  int32_t size = llama_token_to_piece(vocab, token, piece.data(),
                                      static_cast<int32_t>(piece.size()), 0, special);
  if (size < 0) {
    piece.resize(-size);
    size = llama_token_to_piece(vocab, token, piece.data(), static_cast<int32_t>(piece.size()), 0,
                                special);
  }
  piece.resize(std::max(0, size));
  return piece;
}

}  // namespace strata
