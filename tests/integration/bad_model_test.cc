// Wrong models and wrong options: one clear line, the right exit status, nothing left behind.
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shard/model/gguf.h"
#include "shard/model/model_file.h"
#include "tests/integration/processes.h"
#include "tests/support/program.h"
#include "tests/support/sanitizer.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class BadModel : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::MakeTestFolder();
    std::ifstream in(STRATA_DEMO_MODEL, std::ios::binary);
    good_.assign(std::istreambuf_iterator<char>(in), {});
    ASSERT_GT(good_.size(), 1u << 20);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string File(const std::string& name, const std::string& bytes) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  // Runs the demo on `path`; it must fail with `status` and one line on stderr.
  std::string Fails(const std::string& path, int status, std::vector<std::string> more = {}) {
    std::vector<std::string> args = {"demo", "--max-tokens", "3", "--model", path};
    args.insert(args.end(), more.begin(), more.end());
    Program program(args);
    EXPECT_EQ(program.ExitStatus(), status) << program.err();
    EXPECT_THAT(program.out(), IsEmpty());
    std::string said;
    for (absl::string_view line : absl::StrSplit(program.err(), '\n')) {
      if (line.substr(0, 8) == "strata: ") {
        EXPECT_EQ(said, "") << "more than one error: " << program.err();
        said = std::string(line);
      }
    }
    EXPECT_NE(said, "") << program.err();
    return said;
  }

  // The demo model with changed metadata.
  std::string Changed(const std::string& name,
                      const std::vector<std::pair<std::string, GgufValue>>& changes) {
    auto header = ParseGgufHeader(good_);
    EXPECT_TRUE(header.ok()) << header.status();
    const std::string data = good_.substr(header->data_offset);
    for (const auto& [key, value] : changes) header->Set(key, value);
    return File(name, SerializeGgufHeader(*header) + data);
  }

  std::string folder_, good_;
};

TEST_F(BadModel, MissingFile) {
  EXPECT_THAT(Fails(folder_ + "/none.gguf", 3), HasSubstr("none.gguf"));
}

TEST_F(BadModel, NotAGguf) {
  EXPECT_THAT(Fails(File("x.gguf", "PK\x03\x04 not a model at all, but long enough"), 3),
              HasSubstr("not a GGUF"));
  EXPECT_THAT(Fails(File("empty.gguf", ""), 3), HasSubstr("empty.gguf"));
  EXPECT_THAT(Fails(folder_, 3), HasSubstr(folder_));
}

TEST_F(BadModel, Truncated) {
  EXPECT_THAT(Fails(File("half.gguf", good_.substr(0, good_.size() / 2)), 3),
              HasSubstr("half.gguf"));
  EXPECT_THAT(Fails(File("head.gguf", good_.substr(0, 1000)), 3), HasSubstr("head.gguf"));
}

TEST_F(BadModel, AbsurdCounts) {
  std::string bytes = good_;
  std::memset(bytes.data() + 8, 0xff, 8);  // number of tensors
  Fails(File("tensors.gguf", bytes), 3);
  bytes = good_;
  std::memset(bytes.data() + 16, 0x7f, 8);  // number of metadata entries
  Fails(File("metadata.gguf", bytes), 3);
}

TEST_F(BadModel, UnknownArchitecture) {
  EXPECT_THAT(Fails(Changed("new.gguf", {{"general.architecture", GgufValue::String("frobnicator")},
                                         {"frobnicator.block_count", GgufValue::U32(6)}}),
                    3),
              AllOf(HasSubstr("frobnicator"), HasSubstr("--unverified")));
}

TEST_F(BadModel, AMissingPart) {
  const GgufValue tensors =
      GgufValue::U32(static_cast<uint32_t>(ParseGgufHeader(good_)->tensors.size() + 1));
  const std::string part = Changed("m-00001-of-00003.gguf", {{"split.count", GgufValue::U32(3)},
                                                             {"split.no", GgufValue::U32(0)},
                                                             {"split.tensors.count", tensors}});
  EXPECT_THAT(Fails(part, 3), HasSubstr("m-00002-of-00003.gguf"));
}

TEST_F(BadModel, TooLargeForTheMemory) {
  // A context whose cache no machine of today holds.
  EXPECT_THAT(Fails(STRATA_DEMO_MODEL, 4, {"--ctx", "16000000", "--nodes", "1"}),
              HasSubstr("free"));
}

TEST_F(BadModel, APromptLongerThanTheContext) {
  std::string prompt;
  for (int i = 0; i < 200; ++i) prompt += "one two three ";
  EXPECT_THAT(Fails(STRATA_DEMO_MODEL, 3, {"--ctx", "64", "--prompt", prompt}),
              AllOf(HasSubstr("tokens"), HasSubstr("--ctx")));
}

TEST_F(BadModel, CutsThatDoNotFit) {
  EXPECT_THAT(Fails(STRATA_DEMO_MODEL, 3, {"--cut", "0,3"}), HasSubstr("cut 0"));
  EXPECT_THAT(Fails(STRATA_DEMO_MODEL, 3, {"--cut", "3,2"}), HasSubstr("cut 2"));
  EXPECT_THAT(Fails(STRATA_DEMO_MODEL, 3, {"--nodes", "50"}), HasSubstr("50 stages"));
}

// libllama may abort on a damaged header; whatever it does, the demo ends with a line and a status
// that says what failed, and nothing is left.
TEST_F(BadModel, FlippedBitsNeverHurtMoreThanTheirWorker) {
  auto header = ParseGgufHeader(good_);
  ASSERT_TRUE(header.ok());
  uint32_t state = 12345;
  const int rounds = strata::testing::kHasAddressSanitizer ? 4 : 12;  // of nine seconds each, there
  for (int round = 0; round < rounds; ++round) {
    std::string bytes = good_;
    state = state * 1664525 + 1013904223;
    const size_t at = state % (header->data_offset * 8);
    bytes[at / 8] = static_cast<char>(bytes[at / 8] ^ (1 << (at % 8)));
    const std::string path = File("flipped.gguf", bytes);
    Program program({"demo", "--max-tokens", "3", "--model", path});
    const int status = program.ExitStatus();
    // A flip in a name or a token may do no harm.
    EXPECT_THAT(status, ::testing::AnyOf(0, 1, 3, 4, 5)) << "bit " << at << ": " << program.err();
    EXPECT_EQ(program.err().find("Segmentation"), std::string::npos);
  }
}

}  // namespace
}  // namespace strata
