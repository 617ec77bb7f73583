#include "shard/model/experts.h"

#include <regex>
#include <string>

#include "gtest/gtest.h"

namespace strata {
namespace {

GgufHeader HeaderWith(const std::vector<std::string>& names) {
  GgufHeader header;
  for (const std::string& name : names) {
    header.tensors.push_back({.name = name, .bytes = uint64_t{1} << header.tensors.size()});
  }
  return header;
}

// Routed experts, in the names of many architectures.
const std::vector<std::string>& Experts() {
  static const auto& names = *new std::vector<std::string>{
      "blk.0.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight", "blk.10.ffn_down_exps.weight",
      "blk.1.ffn_gate_up_exps.weight", "blk.2.ffn_up_exps.bias"};
  return names;
}

TEST(Experts, AreDistinguishedFromSharedExperts) {
  for (const std::string& name : Experts()) EXPECT_TRUE(IsExpertTensor(name)) << name;
  for (const char* name :
       {"blk.1.ffn_up.weight", "blk.1.ffn_up_shexp.weight", "blk.1.ffn_gate_inp.weight",
        "blk.1.exp_probs_b.bias", "blk.1.attn_q.weight", "token_embd.weight", "ffn_exps.weight"}) {
    EXPECT_FALSE(IsExpertTensor(name)) << name;
  }
}

TEST(Experts, AreCountedByLayer) {
  const GgufHeader header = HeaderWith(Experts());  // of 1, 2, 4, 8 and 16 bytes
  EXPECT_EQ(ExpertBytes(header, {0, 1}), 1u);
  EXPECT_EQ(ExpertBytes(header, {1, 2}), 2u + 8u);
  EXPECT_EQ(ExpertBytes(header, {2, 11}), 4u + 16u);
  EXPECT_EQ(ExpertBytes(header, {3, 10}), 0u);
  EXPECT_EQ(ExpertBytes(HeaderWith({"blk.x.ffn_up_exps.weight", "blk.0.attn_q.weight"}), {0, 9}),
            0u);
}

TEST(Experts, ThePatternNamesThoseOfTheFirstLayersOnly) {
  for (const uint32_t n_layer : {1u, 2u, 11u, 12u}) {
    const std::regex pattern(ExpertPattern(n_layer));
    const GgufHeader header = HeaderWith(Experts());
    for (const GgufTensor& tensor : header.tensors) {
      const uint32_t layer = static_cast<uint32_t>(std::stoi(tensor.name.substr(4)));
      EXPECT_EQ(std::regex_search(tensor.name, pattern), layer < n_layer) << tensor.name;
    }
    for (const char* name : {"blk.0.ffn_up_shexp.weight", "blk.0.attn_q.weight", "blk.00x.a_exps.b",
                             "output.weight", "xblk.0.ffn_up_exps.weight"}) {
      EXPECT_FALSE(std::regex_search(name, pattern)) << name;
    }
  }
}

}  // namespace
}  // namespace strata
