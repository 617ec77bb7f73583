#include "coordinator/generation/remote_tokenizer.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "coordinator/request/request_status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/unreachable_node.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::Each;
using ::testing::ElementsAre;

// A node that answers when the test says so.
class PatientNode final : public testing::UnreachableNode {
 public:
  PatientNode() : UnreachableNode("patient") {}

  struct Call {
    std::string text;
    Tokenized done;
    bool cancelled = false;
  };

  CancelCall TokenizeAsync(const wire::TokenizeRequest& request, Tokenized done) override {
    calls.push_back(std::make_unique<Call>());
    calls.back()->text = request.text();
    calls.back()->done = std::move(done);
    return [call = calls.back().get()] { call->cancelled = true; };
  }
  void Answer(size_t call) {
    wire::TokenizeResponse tokens;
    tokens.add_tokens(static_cast<int32_t>(call));
    std::move(calls[call]->done)(std::move(tokens));
  }
  std::vector<std::string> requested() const {
    std::vector<std::string> texts;
    for (const auto& call : calls) texts.push_back(call->text);
    return texts;
  }

  std::vector<std::unique_ptr<Call>> calls;
};

class RemoteTokenizerTest : public ::testing::Test {
 protected:
  NodeClient::CancelCall Tokenize(const std::string& text, const std::string& client = "") {
    RemoteTokenizer::Job job;
    job.request.set_text(text);
    job.client = client;
    const size_t index = ends.size();
    ends.push_back(absl::UnknownError("pending"));
    job.done = [this, index](const absl::StatusOr<wire::TokenizeResponse>& tokens) {
      ends[index] = tokens.status();
    };
    return tokenizer->Tokenize(std::move(job));
  }

  PatientNode node;
  std::shared_ptr<RemoteTokenizer> tokenizer = std::make_shared<RemoteTokenizer>(
      &node, RemoteTokenizer::Options{.in_flight_max = 2, .waiting_max = 4});
  std::vector<absl::Status> ends;
};

TEST_F(RemoteTokenizerTest, AFewAreInFlightAndTheOthersWaitTheirTurn) {
  for (const char* text : {"a", "b", "c", "d"}) Tokenize(text);
  EXPECT_THAT(node.requested(), ElementsAre("a", "b"));
  EXPECT_EQ(tokenizer->size(), 4);
  node.Answer(1);
  EXPECT_THAT(node.requested(), ElementsAre("a", "b", "c"));
  EXPECT_THAT(ends[1], IsOk());
  node.Answer(0);
  node.Answer(2);
  node.Answer(3);
  EXPECT_THAT(ends, Each(IsOk()));
  EXPECT_EQ(tokenizer->size(), 0);
}

TEST_F(RemoteTokenizerTest, AFullQueueIsRefusedOfTheClientOrOfAll) {
  for (int i = 0; i < 5; ++i) Tokenize("mine", "me");  // two in flight, three wait
  Tokenize("too many of mine", "me");
  EXPECT_THAT(ends.back(), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_TRUE(IsClientLimit(ends.back()));
  EXPECT_TRUE(RetryAfterMs(ends.back()).has_value());
  Tokenize("another's", "you");
  EXPECT_THAT(ends.back(), StatusIs(absl::StatusCode::kUnknown));
  Tokenize("too many of all", "she");
  EXPECT_THAT(ends.back(), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_FALSE(IsClientLimit(ends.back()));
  node.Answer(0);
  Tokenize("there is room", "she");
  EXPECT_THAT(ends.back(), StatusIs(absl::StatusCode::kUnknown));
  for (size_t i = 1; i < node.calls.size(); ++i) node.Answer(i);
  EXPECT_EQ(tokenizer->size(), 0);
}

TEST_F(RemoteTokenizerTest, ACancelledJobThatWaitsIsNeverSent) {
  Tokenize("a");
  Tokenize("b");
  const auto cancel = Tokenize("c");
  Tokenize("d");
  cancel();
  EXPECT_THAT(ends[2], StatusIs(absl::StatusCode::kCancelled));
  cancel();
  node.Answer(0);
  EXPECT_THAT(node.requested(), ElementsAre("a", "b", "d"));
  node.Answer(1);
  node.Answer(2);
}

TEST_F(RemoteTokenizerTest, ACallInFlightIsCancelledAtTheNode) {
  const auto cancel = Tokenize("a");
  cancel();
  EXPECT_TRUE(node.calls[0]->cancelled);
  EXPECT_THAT(ends[0], StatusIs(absl::StatusCode::kUnknown));  // the node has the last word
  std::move(node.calls[0]->done)(absl::CancelledError("by the caller"));
  EXPECT_THAT(ends[0], StatusIs(absl::StatusCode::kCancelled));
  cancel();
}

}  // namespace
}  // namespace strata
