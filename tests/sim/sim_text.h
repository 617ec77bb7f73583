// What a simulated model computes: a hash for each layer, of every row that it was fed, in their
// order. A token depends on the whole sequence before it, on its seed, and on nothing else: not on
// where the model is cut, nor on how often the sequence was fed. Values; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace strata {

inline constexpr int32_t kSimVocabulary = 1000;

inline uint64_t SimMix(uint64_t a, uint64_t b) {
  uint64_t h = a * 0x9e3779b97f4a7c15ull ^ (b + 0x7f4a7c15) * 0xbf58476d1ce4e5b9ull;
  h ^= h >> 29;
  h *= 0x94d049bb133111ebull;
  return h ^ (h >> 32);
}

// The output of `layer` for a row `value`, where the row before left `before`.
inline uint64_t SimLayer(uint32_t layer, uint64_t before, uint64_t value) {
  return SimMix(SimMix(before, value), layer);
}
inline constexpr uint64_t kSimEmpty = 7;  // `before` the first row

struct SimChoice {
  int32_t token = 0;
  bool is_end = false;
};
// The token after a sequence of `length` tokens, whose last row left the last layer as `value`.
inline SimChoice SimChoose(uint64_t value, uint64_t seed, size_t length) {
  const uint64_t h = SimMix(SimMix(value, seed), length);
  return {.token = static_cast<int32_t>(h % kSimVocabulary), .is_end = h % 83 == 0};
}

// The sequence as an undivided model computes it, to compare with.
class SimSequence {
 public:
  SimSequence(uint32_t n_layer, const std::vector<int32_t>& prompt) : layers_(n_layer, kSimEmpty) {
    for (const int32_t token : prompt) Push(token);
  }
  void Push(int32_t token) {
    value_ = static_cast<uint64_t>(token);
    for (uint32_t i = 0; i < layers_.size(); ++i) {
      value_ = layers_[i] = SimLayer(i, layers_[i], value_);
    }
    ++length_;
  }
  SimChoice Next(uint64_t seed) const { return SimChoose(value_, seed, length_); }
  size_t length() const { return length_; }

 private:
  std::vector<uint64_t> layers_;
  uint64_t value_ = 0;
  size_t length_ = 0;
};

}  // namespace strata
