#include "node/api/patient_responder.h"

#include <memory>
#include <string>
#include <utility>

#include "gtest/gtest.h"

namespace strata {
namespace {

class RecordingResponder final : public HttpResponder {
 public:
  void Answer(HttpResponse response) override {
    answered = response.status;
    body = std::move(response.body);
  }
  void Begin(HttpResponse head) override {
    ++begun;
    body = std::move(head.body);
  }
  void Write(absl::string_view bytes) override { body += bytes; }
  void End() override { ++ended; }
  void OnGone(absl::AnyInvocable<void() &&>) override {}
  void Run(absl::AnyInvocable<void() &&> fn) override { std::move(fn)(); }

  int answered = 0, begun = 0, ended = 0;
  std::string body;
};

class PatientResponderTest : public ::testing::Test {
 protected:
  const std::shared_ptr<RecordingResponder> to_ = std::make_shared<RecordingResponder>();
  PatientResponder stream_{to_, &kEventStreamForm, "m"};
  const SteadyTime later_ = SteadyTime::Now() + absl::Seconds(10);
};

TEST_F(PatientResponderTest, AnErrorSoonIsAnAnswer) {
  stream_.Say("loading m", SteadyTime::Now());
  stream_.Answer({.status = 503, .body = "no"});
  EXPECT_EQ(to_->answered, 503);
  EXPECT_EQ(to_->begun, 0);
}

TEST_F(PatientResponderTest, AStreamThatWaitsHasCommentsAndThenItsEvents) {
  stream_.Say("loading m 1 %", later_);
  stream_.Say("loading m 1 %", later_ + absl::Seconds(1));
  stream_.Say("loading m\r\n2 %", later_ + absl::Seconds(1));
  stream_.Say("loading m\r\n2 %", later_ + absl::Seconds(9));
  stream_.Begin({.body = "data: 1\n\n"});
  stream_.Say("too late", later_ + absl::Seconds(20));
  stream_.Write("data: 2\n\n");
  stream_.End();
  EXPECT_EQ(to_->body,
            ": loading m 1 %\n\n: loading m  2 %\n\n: loading m  2 %\n\ndata: 1\n\ndata: 2\n\n");
  EXPECT_EQ(to_->begun, 1);
  EXPECT_EQ(to_->ended, 1);
}

TEST_F(PatientResponderTest, AnErrorOfAStreamThatHasBegunIsItsLastEvent) {
  stream_.Say("loading m", later_);
  stream_.Answer({.status = 503, .body = R"({"error":1})"});
  EXPECT_EQ(to_->body, ": loading m\n\ndata: {\"error\":1}\n\n");
  EXPECT_EQ(to_->answered, 0);
  EXPECT_EQ(to_->ended, 1);
}

TEST_F(PatientResponderTest, AnAnswerThatIsNoStreamIsNotBegun) {
  PatientResponder whole(to_, nullptr, "m");
  whole.Say("loading m", later_);
  EXPECT_EQ(to_->begun, 0);
  whole.Answer({.body = "{}"});
  EXPECT_EQ(to_->answered, 200);
}

}  // namespace
}  // namespace strata
