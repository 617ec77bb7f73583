#include "node/hub/pull.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/node/hub/fake_hub.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::strata::testing::FakeHub;
using ::strata::testing::FakeModel;
using ::strata::testing::FakeReply;
using ::strata::testing::FakeRequest;
using ::strata::testing::RepositoryOf;
using ::strata::testing::ServeFile;
using ::strata::testing::Sha256Of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kCommit[] = "0123456789abcdef0123456789abcdef01234567";

std::string Read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class PullTest : public ::testing::Test {
 protected:
  absl::StatusOr<PulledModel> PullFrom(const FakeHub& hub, const std::string& name) {
    options_.hub.hf_endpoint = options_.hub.ollama_registry = hub.url();
    options_.hub.retry_first = absl::Milliseconds(1);
    options_.hub.note = [this](const std::string& note) { notes_.push_back(note); };
    options_.folders.strata = folder_;
    return Pull(*ParseModelSource(name), options_);
  }

  const std::string folder_ = testing::MakeTestFolder();
  const std::string content_ = FakeModel(100'000);
  std::vector<std::string> notes_;
  PullOptions options_;
};

TEST_F(PullTest, FetchesOnceFromHuggingFace) {
  const FakeHub hub([&](const FakeRequest& request) {
    if (absl::StartsWith(request.path, "/api/")) {
      return RepositoryOf("org/repo", kCommit, "q/m-Q8_0.gguf", content_);
    }
    EXPECT_EQ(request.path, std::string("/org/repo/resolve/") + kCommit + "/q/m-Q8_0.gguf");
    return ServeFile(request, content_);
  });
  const auto pulled = PullFrom(hub, "hf:org/repo");
  ASSERT_THAT(pulled, IsOk());
  EXPECT_FALSE(pulled->was_here);
  EXPECT_EQ(pulled->path, folder_ + "/huggingface.co/org/repo/" + kCommit + "/q/m-Q8_0.gguf");
  EXPECT_EQ(pulled->quant, "Q8_0");
  EXPECT_EQ(Read(pulled->path), content_);
  const size_t before = hub.requests().size();
  for (const char* name : {"hf:org/repo", "org/repo:q8_0", "hf:org/repo/q/m-Q8_0.gguf"}) {
    const auto again = PullFrom(hub, name);
    ASSERT_THAT(again, IsOk()) << name;
    EXPECT_TRUE(again->was_here);
    EXPECT_EQ(again->path, pulled->path);
  }
  EXPECT_EQ(hub.requests().size(), before) << "nobody outside is asked";
}

TEST_F(PullTest, OfflineNobodyIsAsked) {
  const FakeHub hub([&](const FakeRequest&) { return FakeReply(); });
  options_.offline = true;
  EXPECT_THAT(PullFrom(hub, "hf:org/repo"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("without --offline")));
  EXPECT_THAT(hub.requests(), IsEmpty());
}

TEST_F(PullTest, AllPartsOfAModelAreFetched) {
  const std::string parts[] = {FakeModel(50'000, 1), FakeModel(60'000, 2)};
  const FakeHub hub([&](const FakeRequest& request) {
    if (absl::StartsWith(request.path, "/api/")) {
      nlohmann::json json = {{"id", "org/repo"}, {"sha", kCommit}};
      for (int i : {0, 1}) {
        json["siblings"].push_back(
            {{"rfilename", "m-Q4_0-0000" + std::to_string(i + 1) + "-of-00002.gguf"},
             {"size", parts[i].size()},
             {"lfs", {{"sha256", Sha256Of(parts[i])}}}});
      }
      return FakeReply{.body = json.dump()};
    }
    return ServeFile(request, parts[absl::StrContains(request.path, "00002-of") ? 1 : 0]);
  });
  uint64_t last_done = 0, last_total = 0;
  options_.progress = [&](const std::string&, uint64_t done, uint64_t total) {
    last_done = done;
    last_total = total;
  };
  const auto pulled = PullFrom(hub, "hf:org/repo");
  ASSERT_THAT(pulled, IsOk());
  EXPECT_EQ(pulled->bytes, 110'000);
  EXPECT_EQ(Read(pulled->path), parts[0]);
  EXPECT_EQ(last_done, 110'000);
  EXPECT_EQ(last_total, 110'000);
  std::filesystem::remove(pulled->path);
  EXPECT_FALSE(PullFrom(hub, "hf:org/repo")->was_here) << "half a model is none";
  EXPECT_EQ(Read(pulled->path), parts[0]);
}

TEST_F(PullTest, FetchesFromOllama) {
  const std::string sha256 = Sha256Of(content_);
  const FakeHub hub([&](const FakeRequest& request) {
    if (request.path == "/v2/library/tiny/manifests/latest") {
      return FakeReply{.body = R"({"layers": [{"mediaType": "application/vnd.ollama.image.model",
          "digest": "sha256:)" +
                               sha256 + R"(", "size": 100000}]})"};
    }
    EXPECT_EQ(request.path, "/v2/library/tiny/blobs/sha256:" + sha256);
    return ServeFile(request, content_);
  });
  const auto pulled = PullFrom(hub, "ollama:tiny");
  ASSERT_THAT(pulled, IsOk());
  EXPECT_EQ(Read(pulled->path), content_);
  const auto again = PullFrom(hub, "ollama:tiny:latest");
  ASSERT_THAT(again, IsOk());
  EXPECT_TRUE(again->was_here);
  EXPECT_EQ(again->path, pulled->path);
}

TEST_F(PullTest, FetchesFromAnAddress) {
  const FakeHub hub([&](const FakeRequest& request) { return ServeFile(request, content_); });
  const auto pulled = PullFrom(hub, hub.url() + "/a/m-Q4_0.gguf?signature=1");
  ASSERT_THAT(pulled, IsOk());
  EXPECT_TRUE(absl::EndsWith(pulled->path, "/a/m-Q4_0.gguf")) << pulled->path;
  EXPECT_EQ(pulled->bytes, content_.size());
  EXPECT_EQ(Read(pulled->path), content_);
  EXPECT_TRUE(PullFrom(hub, hub.url() + "/a/m-Q4_0.gguf?signature=2")->was_here);
}

TEST_F(PullTest, AnUnknownQuantListsWhatIsThere) {
  const FakeHub hub([&](const FakeRequest&) {
    return RepositoryOf("org/repo", kCommit, "m-Q8_0.gguf", content_);
  });
  EXPECT_THAT(PullFrom(hub, "hf:org/repo:Q3_K"),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("no Q3_K"), HasSubstr("Q8_0 (97.7 KiB)"))));
}

TEST_F(PullTest, ARepositoryWithoutGgufIsSaid) {
  const FakeHub hub([&](const FakeRequest&) {
    return RepositoryOf("org/repo", kCommit, "model.safetensors", content_);
  });
  EXPECT_THAT(PullFrom(hub, "hf:org/repo"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("convert_hf_to_gguf.py")));
}

TEST_F(PullTest, AGatedFileIsSaid) {
  const FakeHub hub([&](const FakeRequest& request) {
    if (absl::StartsWith(request.path, "/api/")) {
      return RepositoryOf("org/repo", kCommit, "m-Q8_0.gguf", content_);
    }
    return FakeReply{.status = 403, .headers = {{"X-Error-Code", "GatedRepo"}}};
  });
  EXPECT_THAT(PullFrom(hub, "hf:org/repo"),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("accept its licence")));
}

TEST_F(PullTest, WithoutAFolderItSaysSo) {
  EXPECT_THAT(Pull(*ParseModelSource("hf:org/repo"), PullOptions()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("XDG_CACHE_HOME")));
}

}  // namespace
}  // namespace strata
