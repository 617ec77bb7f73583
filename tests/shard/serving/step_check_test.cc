#include "shard/serving/step_check.h"

#include <functional>
#include <string>
#include <utility>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "shard/kv_store/kv_block.h"

namespace strata {
namespace {

using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

constexpr StepLimits kLimits{.n_embd = 4, .n_seq_max = 2, .n_batch = 3};

wire::StageSpec Spec() {
  wire::StageSpec spec;
  spec.set_model_id("model");
  spec.mutable_epoch()->set_counter(5);
  spec.mutable_epoch()->set_coordinator_id("b");
  return spec;
}

wire::Step Good() {
  wire::Step step;
  step.set_model_id("model");
  *step.mutable_epoch() = Spec().epoch();
  step.set_step_id(7);
  for (int i = 0; i < 2; ++i) {
    step.add_tokens(i);
    step.add_positions(i);
    step.add_slots(1);
  }
  step.add_sample_rows(1);
  return step;
}

absl::StatusOr<wire::Step> ReadAs(wire::ActivationType type, size_t bytes, uint32_t n_embd) {
  wire::Step step = Good();
  step.set_activation_type(type);
  return ReadStep(MakeFrame(FrameType::kStep, step, Payload::Own(std::string(bytes, 'x'))), Spec(),
                  {.n_embd = n_embd, .n_seq_max = 2, .n_batch = 3}, /*last_step_id=*/6);
}

absl::StatusOr<wire::Step> Read(const wire::Step& step, size_t floats = 8) {
  return ReadStep(MakeFrame(FrameType::kStep, step, Payload::Own(std::vector<float>(floats))),
                  Spec(), kLimits, /*last_step_id=*/6);
}

TEST(ReadStep, TakesAStepThatFits) {
  auto step = Read(Good());
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(step->step_id(), 7);
}

TEST(ReadStep, TakesAStepOfEditsAlone) {
  wire::Step step = Good();
  step.clear_tokens();
  step.clear_positions();
  step.clear_slots();
  step.clear_sample_rows();
  step.add_edits()->set_kind(wire::KvEdit::DROP);
  EXPECT_TRUE(Read(step, 0).ok());
}

TEST(ReadStep, RefusesAnotherEpochAsAborted) {
  wire::Step step = Good();
  step.mutable_epoch()->set_counter(4);
  EXPECT_THAT(Read(step), StatusIs(absl::StatusCode::kAborted, HasSubstr("epoch")));
  step = Good();
  step.mutable_epoch()->set_coordinator_id("a");
  EXPECT_THAT(Read(step), StatusIs(absl::StatusCode::kAborted));
}

struct InvalidStep {
  const char* name;
  std::function<void(wire::Step&)> spoil;
  const char* says;
};

class ReadInvalidStep : public ::testing::TestWithParam<InvalidStep> {};

TEST_P(ReadInvalidStep, IsRefusedByName) {
  wire::Step step = Good();
  GetParam().spoil(step);
  EXPECT_THAT(Read(step), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(GetParam().says)));
}

INSTANTIATE_TEST_SUITE_P(
    All, ReadInvalidStep,
    ::testing::Values(
        InvalidStep{"Model", [](wire::Step& s) { s.set_model_id("x"); }, "another model"},
        InvalidStep{"Replay", [](wire::Step& s) { s.set_step_id(6); }, "comes after step 6"},
        InvalidStep{"Rows", [](wire::Step& s) { s.add_tokens(1), s.add_tokens(1); }, "4 rows"},
        InvalidStep{"Columns", [](wire::Step& s) { s.add_positions(1); }, "differ in length"},
        InvalidStep{"Payload",
                    [](wire::Step& s) { s.add_tokens(1), s.add_positions(2), s.add_slots(0); },
                    "payload of 32 bytes"},
        InvalidStep{"Slot", [](wire::Step& s) { s.set_slots(0, 2); }, "slot 2 is outside [0, 2)"},
        InvalidStep{"NegativeSlot", [](wire::Step& s) { s.set_slots(0, -1); }, "slot -1"},
        InvalidStep{"Position", [](wire::Step& s) { s.set_positions(0, -1); }, "position -1"},
        InvalidStep{"SampleRow", [](wire::Step& s) { s.set_sample_rows(0, 2); },
                    "samples row 2 of 2"},
        InvalidStep{"SampleOrder", [](wire::Step& s) { s.add_sample_rows(1); }, "do not rise"},
        InvalidStep{"DraftRow", [](wire::Step& s) { s.add_draft_rows(0); },
                    "draft row 0, which is not sampled"},
        InvalidStep{"DraftOrder", [](wire::Step& s) { s.add_draft_rows(1), s.add_draft_rows(1); },
                    "draft_rows do not rise"},
        InvalidStep{"OpenedSlot", [](wire::Step& s) { s.add_opens()->set_slot(9); },
                    "opened slot 9"},
        InvalidStep{"EditKind", [](wire::Step& s) { s.add_edits(); }, "unknown KV edit 0"},
        InvalidStep{
            "FutureEdit",
            [](wire::Step& s) { s.add_edits()->set_kind(static_cast<wire::KvEdit::Kind>(77)); },
            "unknown KV edit 77"},
        InvalidStep{"CopiedSlot",
                    [](wire::Step& s) {
                      s.add_edits()->set_kind(wire::KvEdit::COPY);
                      s.mutable_edits(0)->set_from_slot(-3);
                    },
                    "copied slot -3"},
        InvalidStep{"Blocks",
                    [](wire::Step& s) {
                      s.add_edits()->set_kind(wire::KvEdit::LOAD);
                      s.mutable_edits(0)->set_blocks("seventeen letters");
                    },
                    "names of KV blocks in 17 bytes"},
        InvalidStep{"Scope",
                    [](wire::Step& s) {
                      s.add_edits()->set_kind(wire::KvEdit::LOAD);
                      s.mutable_edits(0)->set_scope(std::string(kKvScopeBytesMax + 1, 'x'));
                    },
                    "a scope of 65 bytes"}),
    [](const auto& param) { return std::string(param.param.name); });

TEST(ReadStep, RequiresThePayloadLengthOfItsType) {
  const std::pair<wire::ActivationType, size_t> right[] = {
      {wire::F32, 512}, {wire::F16, 256}, {wire::BF16, 256}, {wire::Q8_0, 136}};
  for (const auto& [type, bytes] : right) {
    EXPECT_TRUE(ReadAs(type, bytes, 64).ok()) << type;
    for (const size_t wrong : {size_t{0}, bytes - 1, bytes + 1, 2 * bytes}) {
      EXPECT_THAT(ReadAs(type, wrong, 64),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           HasSubstr(absl::StrCat("payload of ", wrong, " bytes"))))
          << type;
    }
  }
}

TEST(ReadStep, RefusesTypesThatDoNotFitTheRows) {
  EXPECT_THAT(ReadAs(wire::Q8_0, 68, 48),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rows of 48 values as q8_0")));
  for (const int type : {-1, 4, 1 << 30}) {
    EXPECT_THAT(ReadAs(static_cast<wire::ActivationType>(type), 512, 64),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("unknown")));
  }
  // The first stage has none.
  EXPECT_THAT(ReadAs(wire::F16, 0, 0), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(ReadStep, RefusesAHeaderThatIsNoStep) {
  Frame frame{.type = FrameType::kStep, .header = "\xff\xff\xff garbage", .payload = {}};
  EXPECT_THAT(ReadStep(frame, Spec(), kLimits, 0), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(ReadStep, FirstStageTakesNoActivations) {
  const Frame frame = MakeFrame(FrameType::kStep, Good(), Payload::Own(std::vector<float>(8)));
  EXPECT_THAT(ReadStep(frame, Spec(), {.n_embd = 0, .n_seq_max = 2, .n_batch = 3}, 6),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("payload")));
}

}  // namespace
}  // namespace strata
