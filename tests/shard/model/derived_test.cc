#include "shard/model/derived.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "llama.h"
#include "shard/device/engine.h"
#include "shard/model/model_file.h"
#include "shard/model/slice.h"
#include "tests/support/model_zoo.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

struct FreeModel {
  void operator()(llama_model* model) const { llama_model_free(model); }
};
using Model = std::unique_ptr<llama_model, FreeModel>;

// libllama's view of the header of `slice`, with `key` changed when it is not empty.
Model Seen(const Slice& slice, const std::string& key = "", GgufValue value = {}) {
  std::string bytes(slice.file_bytes(), '\0');
  EXPECT_EQ(*slice.ReadAt(0, bytes.data(), bytes.size()), bytes.size());
  if (!key.empty()) {
    auto header = ParseGgufHeader(bytes);
    EXPECT_TRUE(header.ok()) << header.status();
    const std::string data = bytes.substr(header->data_offset);
    header->Set(key, std::move(value));
    bytes = SerializeGgufHeader(*header) + data;
  }
  std::FILE* file = fmemopen(bytes.data(), bytes.size(), "rb");
  llama_model_params params = llama_model_default_params();
  params.load_mode = LLAMA_LOAD_MODE_NONE;
  params.no_alloc = true;
  Model model(llama_model_load_from_file_ptr(file, params));
  std::fclose(file);
  EXPECT_NE(model, nullptr);
  return model;
}

class DerivedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    StartEngine();
    for (const testing::ZooModel& model : testing::ModelZoo()) {
      if (model.name != "llama") continue;
      auto path = WriteRandomModel(testing::SpecOf(model), testing::ProcessTempFolder());
      ASSERT_TRUE(path.ok()) << path.status();
      file_ = *ModelFile::Open(*path);
    }
    ASSERT_NE(file_, nullptr);
  }
  Slice Cut(uint32_t begin, uint32_t end) { return *Slice::Make(file_, {begin, end}, {}); }

  std::shared_ptr<const ModelFile> file_;
};

TEST_F(DerivedTest, AnHonestSliceIsTheSameModel) {
  const Model whole = Seen(Cut(0, file_->n_layer()));
  for (uint32_t begin = 0; begin + 1 < file_->n_layer(); ++begin) {
    EXPECT_THAT(CheckDerived(Seen(Cut(begin, begin + 1)).get(), whole.get(), file_->header()),
                IsOk());
  }
}

TEST_F(DerivedTest, ADoctoredSliceIsRefusedByName) {
  const Model whole = Seen(Cut(0, file_->n_layer()));
  const Slice slice = Cut(1, 3);
  EXPECT_THAT(CheckDerived(Seen(slice, "llama.context_length", GgufValue::U32(77)).get(),
                           whole.get(), file_->header()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("context length is 77")));
  EXPECT_THAT(CheckDerived(Seen(slice, "llama.rope.scaling.factor", GgufValue::F32(4)).get(),
                           whole.get(), file_->header()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rotary frequency scale")));
}

TEST_F(DerivedTest, AModelThatRunsOtherLayersThanWereCutIsRefused) {
  const Model whole = Seen(Cut(0, file_->n_layer()));
  GgufHeader header = file_->header();
  header.Set("llama.nextn_predict_layers", GgufValue::U32(2));
  EXPECT_THAT(CheckDerived(whole.get(), whole.get(), header),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("libllama runs 6 layers")));
}

}  // namespace
}  // namespace strata
