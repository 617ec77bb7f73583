// Weights from a web server, alone and together with other nodes, where the server also misbehaves.
#include "shard/weights/web_weight_source.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/node/hub/fake_hub.h"
#include "tests/shard/weights/weights_fixture.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::strata::testing::BytesOfSlice;
using ::strata::testing::FakeHub;
using ::strata::testing::FakeReply;
using ::strata::testing::FakeRequest;
using ::strata::testing::GgufBuilder;
using ::strata::testing::MakeTestFolder;
using ::strata::testing::Opened;
using ::strata::testing::PartPath;
using ::strata::testing::Receiver;
using ::strata::testing::ServeFile;
using ::strata::testing::Source;
using ::strata::testing::SourceBytes;
using ::strata::testing::TinyLlama;
using ::strata::testing::Write;
using ::strata::testing::WriteFile;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint32_t kLayers = 6;
// Of headers: what is asked for is a piece at least.
constexpr uint64_t kSlack = 1u << 20;

std::string ContentOf(const std::string& path) {
  std::string content(std::filesystem::file_size(path), '\0');
  std::ifstream(path, std::ios::binary)
      .read(content.data(), static_cast<std::streamsize>(content.size()));
  return content;
}

struct TestModel {
  explicit TestModel(bool tied) {
    GgufBuilder builder = TinyLlama({.n_layer = kLayers, .tied = tied});
    for (uint32_t i = 0; i < kLayers; ++i) {
      builder.Tensor(absl::StrCat("blk.", i, ".extra.weight"), {1024, 1024});
    }
    path = Write(builder);
    content = ContentOf(path);
    id = Opened(path)->id();
  }
  std::string path, content, id;
};

// Made once: that takes seconds under AddressSanitizer.
const TestModel& ModelOfTests(bool tied) {
  static const TestModel* const models[] = {new TestModel(false), new TestModel(true)};
  return *models[tied ? 1 : 0];
}

// A model on a server, which answers as the test says.
class WebWeights : public ::testing::Test {
 protected:
  explicit WebWeights(bool tied = false) : model_(ModelOfTests(tied)) {}

  wire::RemoteModel Remote(const std::string& etag = "\"1\"") const {
    wire::RemoteModel remote;
    wire::RemoteFile* const file = remote.add_parts();
    file->set_url(hub_.url() + "/model.gguf");
    file->set_bytes(content_.size());
    file->set_etag(etag);
    return remote;
  }
  WeightFetcher::Request RequestFor(LayerRange layers, std::vector<std::string> peers = {}) const {
    return {.model_id = id_, .peers = std::move(peers), .remote = Remote(), .layers = layers};
  }
  void AnswerBy(std::function<FakeReply(const FakeRequest&)> answer) {
    absl::MutexLock lock(mu_);
    answer_ = std::move(answer);
  }

  const TestModel& model_;
  const std::string &path_ = model_.path, &id_ = model_.id;
  std::string content_ = model_.content;
  absl::Mutex mu_;
  std::function<FakeReply(const FakeRequest&)> answer_ ABSL_GUARDED_BY(mu_) =
      [this](const FakeRequest& request) { return ServeFile(request, content_); };
  const FakeHub hub_{[this](const FakeRequest& request) {
    absl::MutexLock lock(mu_);
    return answer_(request);
  }};
};

class TiedWebWeights : public WebWeights {
 protected:
  TiedWebWeights() : WebWeights(/*tied=*/true) {}
};

TEST_F(WebWeights, HeadersGiveTheIdOfTheModel) {
  Receiver receiver;
  const auto fetched = receiver.Fetch({.model_id = "", .remote = Remote(), .headers_only = true});
  ASSERT_THAT(fetched, IsOk());
  EXPECT_EQ(fetched->headers->id(), id_);
  EXPECT_EQ(fetched->headers->header().tensors.size(), Opened(path_)->header().tensors.size());
  EXPECT_LE(hub_.body_bytes(), 2 * kSlack);
}

TEST_F(WebWeights, OnlyTheSliceIsFetched) {
  Receiver receiver;
  const auto fetched = receiver.Fetch(RequestFor({2, 4}));
  ASSERT_THAT(fetched, IsOk());
  EXPECT_TRUE(BytesOfSlice(fetched->path, {2, 4}) == BytesOfSlice(path_, {2, 4}));
  EXPECT_EQ(fetched->bytes_fetched, SourceBytes(path_, {2, 4}));
  EXPECT_LE(hub_.body_bytes(), SourceBytes(path_, {2, 4}) + 2 * kSlack);
  // Nothing is asked for again, also not by the next process.
  const uint64_t before = hub_.body_bytes();
  ASSERT_THAT(receiver.Fetch(RequestFor({2, 4})), IsOk());
  EXPECT_EQ(hub_.body_bytes(), before);
}

TEST_F(WebWeights, OfSeveralFiles) {
  GgufBuilder builder = TinyLlama({.n_layer = kLayers});
  const std::string prefix = MakeTestFolder() + "/model";
  const std::vector<std::string> parts = builder.BuildParts(3);
  wire::RemoteModel remote;
  for (int i = 0; i < 3; ++i) {
    WriteFile(PartPath(prefix, i + 1, 3), parts[i]);
    wire::RemoteFile* const file = remote.add_parts();
    file->set_url(absl::StrCat(hub_.url(), "/", i));
    file->set_bytes(parts[i].size());
  }
  AnswerBy([&](const FakeRequest& request) {
    return ServeFile(request, parts[static_cast<size_t>(request.path[1] - '0')]);
  });
  Receiver receiver;
  const auto fetched = receiver.Fetch(
      {.model_id = Opened(PartPath(prefix, 1, 3))->id(), .remote = remote, .layers = {1, 4}});
  ASSERT_THAT(fetched, IsOk());
  EXPECT_TRUE(BytesOfSlice(fetched->path, {1, 4}) == BytesOfSlice(PartPath(prefix, 1, 3), {1, 4}));
}

TEST_F(WebWeights, WhatAPeerHasIsNotFetchedAgain) {
  Receiver first, second;
  ASSERT_THAT(first.Fetch(RequestFor({0, 4})), IsOk());
  Source peer("", first.cache());
  const uint64_t before = hub_.body_bytes();
  const auto fetched = second.Fetch(RequestFor({2, 6}, {peer.address()}));
  ASSERT_THAT(fetched, IsOk());
  EXPECT_TRUE(BytesOfSlice(fetched->path, {2, 6}) == BytesOfSlice(path_, {2, 6}));
  EXPECT_EQ(hub_.body_bytes() - before,
            SourceBytes(path_, {2, 6}) - SourceBytes(path_, {2, 4}));  // and no headers
}

// Of a model whose embedding is its output, too.
TEST_F(TiedWebWeights, CrossTheSlowLinkOnceWhereTwoStagesNeedThem) {
  Receiver first, last;
  // Both have the headers.
  for (Receiver* const each : {&first, &last}) {
    ASSERT_THAT(each->Fetch({.model_id = id_, .remote = Remote(), .headers_only = true}), IsOk());
  }
  Source of_first("", first.cache()), of_last("", last.cache());
  const uint64_t before = hub_.body_bytes();
  AnswerBy([this](const FakeRequest& request) {
    FakeReply reply = ServeFile(request, content_);
    reply.each_64_kib = absl::Milliseconds(1);
    return reply;
  });
  absl::StatusOr<WeightFetcher::Fetched> of_first_stage;
  std::thread fetches(
      [&] { of_first_stage = first.Fetch(RequestFor({0, 3}, {of_last.address()})); });
  const auto of_last_stage = last.Fetch(RequestFor({3, kLayers}, {of_first.address()}));
  fetches.join();
  ASSERT_THAT(of_first_stage, IsOk());
  ASSERT_THAT(of_last_stage, IsOk());
  EXPECT_TRUE(BytesOfSlice(of_last_stage->path, {3, 6}) == BytesOfSlice(path_, {3, 6}));
  EXPECT_EQ(hub_.body_bytes() - before, SourceBytes(path_, {0, kLayers}));
}

TEST_F(TiedWebWeights, AreFetchedWhereThePeerDoesNot) {
  Receiver idle, last;
  Source peer("", idle.cache());
  const auto fetched = last.Fetch(RequestFor({3, kLayers}, {peer.address()}));
  ASSERT_THAT(fetched, IsOk());
  EXPECT_TRUE(BytesOfSlice(fetched->path, {3, 6}) == BytesOfSlice(path_, {3, 6}));
}

TEST_F(WebWeights, GoOnBehindCutsAndWhereTheServerIsBusy) {
  int n = 0;
  AnswerBy([&](const FakeRequest& request) {
    if (++n % 5 == 1) return FakeReply{.status = 429, .headers = {{"Retry-After", "0"}}};
    FakeReply reply = ServeFile(request, content_);
    if (reply.body.size() > 4 * kSlack) reply.cut_after = 3 * kSlack;
    return reply;
  });
  Receiver receiver;
  const auto fetched = receiver.Fetch(RequestFor({0, kLayers}));
  ASSERT_THAT(fetched, IsOk());
  EXPECT_TRUE(BytesOfSlice(fetched->path, {0, 6}) == BytesOfSlice(path_, {0, 6}));
  EXPECT_LE(hub_.body_bytes(), content_.size() + 2 * kSlack);  // what came is not asked for again
}

TEST_F(WebWeights, AnAddressThatExpiresIsAskedForAgain) {
  int signature = 0, uses = 0;
  AnswerBy([&](const FakeRequest& request) {
    if (absl::StartsWith(request.path, "/model.gguf")) {
      return FakeReply{.status = 302,
                       .headers = {{"Location", absl::StrCat("/signed?", ++signature)}}};
    }
    const bool is_last = absl::EndsWith(request.path, absl::StrCat("?", signature));
    if (!is_last || ++uses % 20 == 0) return FakeReply{.status = 403};
    return ServeFile(request, content_);
  });
  Receiver receiver;
  const auto fetched = receiver.Fetch(RequestFor({0, 3}));
  ASSERT_THAT(fetched, IsOk());
  EXPECT_TRUE(BytesOfSlice(fetched->path, {0, 3}) == BytesOfSlice(path_, {0, 3}));
  EXPECT_GT(signature, 1);
}

TEST_F(WebWeights, OfAFileThatChangesHalfWayAreNotUsed) {
  Receiver receiver;
  ASSERT_THAT(receiver.Fetch(RequestFor({0, 2})), IsOk());
  AnswerBy([this](const FakeRequest& request) { return ServeFile(request, content_, "\"2\""); });
  EXPECT_THAT(receiver.Fetch(RequestFor({0, 4})),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("the file changed at the server"), HasSubstr("127.0.0.1"))));
  // A server without ETags: by its length.
  AnswerBy([this](const FakeRequest& request) {
    FakeReply reply = ServeFile(request, content_ + "more");
    reply.headers.erase("ETag");
    return reply;
  });
  wire::RemoteModel without = Remote("");
  EXPECT_THAT(receiver.Fetch({.model_id = id_, .remote = without, .layers = {0, 4}}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("the file changed")));
}

TEST_F(WebWeights, OfAnotherModelAreNotUsed) {
  content_ = ContentOf(Write(TinyLlama({.n_layer = 2})));
  Receiver receiver;
  EXPECT_THAT(receiver.Fetch(RequestFor({0, 2})),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("another model")));
}

TEST_F(WebWeights, AServerWithoutRangesIsNotUsed) {
  AnswerBy([this](const FakeRequest&) { return FakeReply{.body = content_}; });
  Receiver receiver;
  EXPECT_THAT(receiver.Fetch({.model_id = "", .remote = Remote(""), .headers_only = true}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--whole")));
}

TEST_F(WebWeights, APageInsteadOfThemIsSaidAndAnotherNodeIsAsked) {
  Receiver behind_login, outside;
  ASSERT_THAT(outside.Fetch(RequestFor({0, 2})), IsOk());
  ASSERT_THAT(behind_login.Fetch({.model_id = id_, .remote = Remote(), .headers_only = true}),
              IsOk());
  AnswerBy([](const FakeRequest&) {
    return FakeReply{.headers = {{"Content-Type", "text/html"}, {"ETag", "\"of the page\""}},
                     .body = "<html>Log in</html>"};
  });
  EXPECT_THAT(behind_login.Fetch(RequestFor({0, 2})),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       AllOf(HasSubstr("sends a page instead of the file (text/html, it begins "
                                       "with: <html>Log in</html>)"),
                             HasSubstr("log in and try again"))));
  Source peer("", outside.cache());
  EXPECT_THAT(behind_login.Fetch(RequestFor({0, 2}, {peer.address()})), IsOk());
}

TEST_F(WebWeights, RefusedPartsAndAFileThatGrowsAreSaid) {
  Receiver receiver;
  ASSERT_THAT(receiver.Fetch(RequestFor({0, 2})), IsOk());
  std::string size = absl::StrCat(content_.size());
  AnswerBy([&](const FakeRequest&) {
    return FakeReply{.status = 416, .headers = {{"Content-Range", "bytes */" + size}}};
  });
  EXPECT_THAT(receiver.Fetch(RequestFor({2, 4})),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("sends no parts of files: --whole")));
  size = absl::StrCat(content_.size() - 1);
  EXPECT_THAT(receiver.Fetch(RequestFor({2, 4})),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("the file changed")));
  // While it is read, at a server without ETags.
  int requests = 0;
  AnswerBy([&](const FakeRequest& request) {
    FakeReply reply = ServeFile(request, ++requests < 2 ? content_ : content_ + "more");
    reply.headers.erase("ETag");
    return reply;
  });
  EXPECT_THAT(receiver.Fetch({.model_id = id_, .remote = Remote(""), .layers = {0, kLayers}}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("the file changed"), HasSubstr("load the model again"))));
  AnswerBy([this](const FakeRequest& request) { return ServeFile(request, content_); });
  const auto fetched = receiver.Fetch(RequestFor({0, kLayers}));
  ASSERT_THAT(fetched, IsOk()) << "what came before is no hindrance";
  EXPECT_TRUE(BytesOfSlice(fetched->path, {0, 6}) == BytesOfSlice(path_, {0, 6}));
}

TEST_F(WebWeights, ANodeWithoutATokenTakesThemFromANodeThatHasOne) {
  AnswerBy([this](const FakeRequest& request) {
    if (request.Header("authorization") != "Bearer hf_secret") return FakeReply{.status = 401};
    return ServeFile(request, content_);
  });
  Receiver without;
  EXPECT_THAT(without.Fetch(RequestFor({0, 2})),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       AllOf(HasSubstr("no token"), Not(HasSubstr("hf_secret")))));
  Receiver with(MakeTestFolder(), 0, [this](const std::string& url) {
    return absl::StartsWith(url, hub_.url()) ? "hf_secret" : "";
  });
  ASSERT_THAT(with.Fetch(RequestFor({0, 2})), IsOk());
  Source peer("", with.cache());
  EXPECT_THAT(without.Fetch(RequestFor({0, 2}, {peer.address()})), IsOk());
  // That node fetches for this one what it does not have itself.
  Source relay("", with.cache(), [&](const std::string& id) { return with.ServerOf(id); });
  const size_t before = hub_.connections();
  const auto fetched = without.Fetch(RequestFor({2, 5}, {relay.address()}));
  ASSERT_THAT(fetched, IsOk());
  EXPECT_TRUE(BytesOfSlice(fetched->path, {2, 5}) == BytesOfSlice(path_, {2, 5}));
  // All reads share the connections of one source, which another load does not change.
  const auto server = with.ServerOf(id_);
  Receiver third;
  ASSERT_THAT(third.Fetch(RequestFor({2, 5}, {relay.address()})), IsOk());
  ASSERT_THAT(with.Fetch(RequestFor({0, 2})), IsOk());
  EXPECT_EQ(with.ServerOf(id_), server);
  EXPECT_LE(hub_.connections() - before, 2 * kServerLanes + 2 * kWeightLanes);
  WeightFetcher::Request elsewhere = RequestFor({0, 2});
  elsewhere.remote = Remote("\"2\"");
  ASSERT_THAT(with.Fetch(elsewhere), IsOk());
  EXPECT_NE(with.ServerOf(id_), server);
}

TEST_F(WebWeights, ADescriptionOfNoFileIsRefused) {
  Receiver receiver;
  for (const char* url : {"", "file:///etc/passwd", "ftp://host/model.gguf"}) {
    wire::RemoteModel remote = Remote();
    remote.mutable_parts(0)->set_url(url);
    EXPECT_THAT(receiver.Fetch({.model_id = id_, .remote = remote, .layers = {0, 2}}),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_EQ(hub_.requests().size(), 0u);
}

TEST_F(WebWeights, ACancelledFetchEndsAtOnce) {
  AnswerBy([](const FakeRequest&) { return FakeReply{.status = 503}; });
  Receiver receiver;
  std::thread cancels([&] { receiver.Cancel(); });
  EXPECT_THAT(receiver.Fetch(RequestFor({0, 2})), StatusIs(absl::StatusCode::kCancelled));
  cancels.join();
}

}  // namespace
}  // namespace strata
