#include "node/hub/foreign_format.h"

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Optional;

class ForeignFormatTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& path, const std::string& content = "x") {
    const fs::path file = fs::path(root_) / path;
    fs::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << content;
    return file.string();
  }
  const std::string root_ = testing::MakeTestFolder();
};

TEST_F(ForeignFormatTest, AFolderNamesItsFormatAndTheCommand) {
  Write("m/model-00001-of-00002.safetensors");
  EXPECT_THAT(WhyNoModel(root_ + "/m"),
              Optional(AllOf(HasSubstr("no GGUF, but safetensors; convert it"),
                             HasSubstr("convert_hf_to_gguf.py " + root_ + "/m --outfile"))));
  Write("p/pytorch_model.bin");
  EXPECT_THAT(WhyNoModel(root_ + "/p"), Optional(HasSubstr("PyTorch")));
  for (const auto& [config, name] :
       {std::pair(R"({"quantization_config": {"quant_method": "awq"}})", "awq"),
        std::pair(R"({"quantization_config": {"quant_method": "exl2"}})", "exl2"),
        std::pair(R"({"quantization": {"bits": 4}})", "MLX")}) {
    Write("m/config.json", config);
    EXPECT_THAT(WhyNoModel(root_ + "/m"),
                Optional(AllOf(HasSubstr(name), HasSubstr("the model that it was made from"))));
  }
  for (const char* config : {"", "[]", "{", R"({"quantization_config": 5})",
                             R"({"quantization_config": {"quant_method": 5}})"}) {
    Write("m/config.json", config);
    EXPECT_THAT(WhyNoModel(root_ + "/m"), Optional(HasSubstr("but safetensors; convert it")));
  }
}

TEST_F(ForeignFormatTest, AFolderWithGgufNamesTheFile) {
  Write("m/a-Q4_0.gguf");
  Write("m/a.safetensors");
  EXPECT_THAT(WhyNoModel(root_ + "/m"), Optional(HasSubstr(root_ + "/m/a-Q4_0.gguf")));
  fs::create_directories(root_ + "/empty");
  EXPECT_THAT(WhyNoModel(root_ + "/empty"), Optional(HasSubstr("is a folder; name")));
}

TEST_F(ForeignFormatTest, AFileIsKnownByItsContentFirst) {
  EXPECT_THAT(
      WhyNoModel(Write("a.safetensors", "{\"x\": 1}")),
      Optional(AllOf(HasSubstr("safetensors"), HasSubstr("convert_hf_to_gguf.py " + root_ + " "))));
  EXPECT_EQ(WhyNoModel(Write("b.safetensors", "GGUF")), std::nullopt);
  EXPECT_EQ(WhyNoModel(Write("b.gguf", "<html>")), std::nullopt) << "others say more of it";
  EXPECT_EQ(WhyNoModel(root_ + "/none"), std::nullopt);
  EXPECT_THAT(WhyNoModel(Write("a-AWQ.safetensors", "{\"x\": 1}")),
              Optional(Not(HasSubstr("convert it"))));
}

}  // namespace
}  // namespace strata
