#include "node/hub/hub_client.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/node/hub/fake_hub.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::strata::testing::FakeHub;
using ::strata::testing::FakeReply;
using ::strata::testing::FakeRequest;
using ::strata::testing::RepositoryOf;
using ::strata::testing::Sha256Of;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr char kCommit[] = "0123456789abcdef0123456789abcdef01234567";

class HubClientTest : public ::testing::Test {
 protected:
  HubClient ClientOf(const FakeHub& hub, const std::string& token = "") {
    HubOptions options = {.hf_endpoint = hub.url(),
                          .ollama_registry = hub.url(),
                          .hf_token = token,
                          .retry_first = absl::Milliseconds(1)};
    options.note = [this](const std::string& note) { notes_.push_back(note); };
    return HubClient(options);
  }
  absl::StatusOr<HubRepo> List(const FakeReply& reply, const std::string& token = "") {
    const FakeHub hub([&](const FakeRequest&) { return reply; });
    return ClientOf(hub, token).ListRepository(source_);
  }
  std::vector<std::string> notes_;
  const ModelSource source_ = *ParseModelSource("hf:org/repo");
};

TEST_F(HubClientTest, ListsTheFilesOfACommit) {
  const FakeHub hub([&](const FakeRequest&) {
    return RepositoryOf("org/repo", kCommit, "m-Q8_0.gguf", "GGUF!");
  });
  const auto repo = ClientOf(hub, "hf_secret").ListRepository(source_);
  ASSERT_THAT(repo, IsOk());
  EXPECT_EQ(repo->revision, kCommit);
  ASSERT_EQ(repo->files.size(), 2);
  EXPECT_EQ(repo->files[1].name, "m-Q8_0.gguf");
  EXPECT_EQ(repo->files[1].bytes, 5);
  EXPECT_EQ(repo->files[1].sha256, Sha256Of("GGUF!"));
  ASSERT_EQ(hub.requests().size(), 1);
  EXPECT_EQ(hub.requests()[0].path, "/api/models/org/repo/revision/main?blobs=true");
  EXPECT_EQ(hub.requests()[0].Header("authorization"), "Bearer hf_secret");
}

TEST_F(HubClientTest, FilesAreFetchedAtTheCommit) {
  HubClient client({.hf_endpoint = "https://hub.example", .hf_token = "hf_secret"});
  const WebRequest request = client.FileRequest(source_, {.repo = "org/repo", .revision = kCommit},
                                                {.name = "a b/m#1.gguf"});
  EXPECT_EQ(request.url,
            std::string("https://hub.example/org/repo/resolve/") + kCommit + "/a%20b/m%231.gguf");
  EXPECT_EQ(request.bearer, "hf_secret");
}

TEST_F(HubClientTest, ARenamedRepositoryIsFoundAndSaid) {
  const FakeHub hub([&](const FakeRequest& request) {
    if (request.path.find("/org/repo/") != std::string::npos) {
      return FakeReply{.status = 307,
                       .headers = {{"Location", "/api/models/new/name/revision/main?blobs=true"}}};
    }
    return RepositoryOf("new/name", kCommit, "m.gguf", "GGUF");
  });
  const auto repo = ClientOf(hub).ListRepository(source_);
  ASSERT_THAT(repo, IsOk());
  EXPECT_EQ(repo->repo, "new/name");
  EXPECT_THAT(notes_, Contains("org/repo is new/name today"));
}

TEST_F(HubClientTest, ErrorsSayWhatToDo) {
  EXPECT_THAT(List({.status = 404, .headers = {{"X-Error-Code", "RepoNotFound"}}}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no such repository")));
  EXPECT_THAT(List({.status = 404, .headers = {{"X-Error-Code", "RevisionNotFound"}}}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no revision main")));
  EXPECT_THAT(List({.status = 401, .headers = {{"X-Error-Code", "RepoNotFound"}}}),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("set HF_TOKEN")));
  EXPECT_THAT(List({.status = 403, .headers = {{"X-Error-Code", "GatedRepo"}}}),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       AllOf(HasSubstr("accept its licence at"), HasSubstr("/org/repo"))));
  EXPECT_THAT(List({.status = 403}, "hf_secret"),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("may not read it")));
  EXPECT_THAT(List({.status = 418}), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(List({.status = 503}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("try again later")));
}

TEST_F(HubClientTest, WhatIsNoAnswerOfAHubIsSaid) {
  for (const char* body :
       {"<html>", "", "[]", "null", "{}", R"({"id": "org/repo", "sha": "x/y", "siblings": []})",
        R"({"id": "../..", "sha": "0123", "siblings": []})",
        R"({"id": "org/repo", "sha": "0123", "siblings": 5})"}) {
    EXPECT_THAT(List({.body = body}),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("log-in page")))
        << body;
  }
}

TEST_F(HubClientTest, FilesThatLeadOutOfAFolderAreLeftOut) {
  const auto repo = List({.body = R"({"id": "org/repo", "sha": "0123", "siblings": [5, null, {},
      {"rfilename": "../x.gguf"}, {"rfilename": "/x.gguf"}, {"rfilename": "a\nb.gguf"},
      {"rfilename": 7}, {"rfilename": "x.gguf", "size": -1, "lfs": {"sha256": "short"}}]})"});
  ASSERT_THAT(repo, IsOk());
  ASSERT_EQ(repo->files.size(), 1);
  EXPECT_EQ(repo->files[0].name, "x.gguf");
  EXPECT_EQ(repo->files[0].bytes, 0);
  EXPECT_EQ(repo->files[0].sha256, "");
}

TEST_F(HubClientTest, AsksAgainAfterTooManyRequests) {
  int refusals = 2;
  const FakeHub hub([&](const FakeRequest&) {
    if (refusals-- > 0) return FakeReply{.status = 429};
    return RepositoryOf("org/repo", kCommit, "m.gguf", "GGUF");
  });
  EXPECT_THAT(ClientOf(hub).ListRepository(source_), IsOk());
}

TEST_F(HubClientTest, OllamasModelIsTheLayerOfThatType) {
  const std::string sha256 = Sha256Of("model");
  const FakeHub hub([&](const FakeRequest&) {
    return FakeReply{.body = R"({"schemaVersion": 2, "layers": [
        {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:0", "size": 5},
        {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:)" +
                             sha256 + R"(", "size": 99}]})"};
  });
  const ModelSource source = *ParseModelSource("ollama:tiny:1b");
  HubClient client = ClientOf(hub, "hf_secret");
  const auto repo = client.ListOllama(source);
  ASSERT_THAT(repo, IsOk());
  ASSERT_EQ(repo->files.size(), 1);
  EXPECT_EQ(repo->files[0].bytes, 99);
  EXPECT_EQ(repo->files[0].sha256, sha256);
  EXPECT_EQ(hub.requests()[0].path, "/v2/library/tiny/manifests/1b");
  EXPECT_EQ(hub.requests()[0].Header("authorization"), "") << "the token is Hugging Face's";
  const WebRequest request = client.FileRequest(source, *repo, repo->files[0]);
  EXPECT_EQ(request.url, hub.url() + "/v2/library/tiny/blobs/sha256:" + sha256);
  EXPECT_EQ(request.bearer, "");
}

TEST_F(HubClientTest, OllamasModelThatIsNotThereIsSaid) {
  const FakeHub hub([&](const FakeRequest&) { return FakeReply{.status = 404}; });
  EXPECT_THAT(ClientOf(hub).ListOllama(*ParseModelSource("ollama:tiny:1b")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("ollama:tiny:1b")));
}

TEST_F(HubClientTest, ARepositoryWithoutGgufNamesItsFormatAndTheConversion) {
  std::vector<HubModel> in_gguf;
  const auto error = [&](const std::string& repo, const std::string& file) {
    return std::string(
        NoGgufError({.repo = repo, .revision = kCommit, .files = {{.name = file}}}, in_gguf)
            .message());
  };
  EXPECT_THAT(error("org/repo", "model-00001-of-00002.safetensors"),
              AllOf(HasSubstr("safetensors"), HasSubstr("convert_hf_to_gguf.py")));
  EXPECT_THAT(error("mlx-community/repo-4bit", "model.safetensors"),
              AllOf(HasSubstr("MLX"), HasSubstr("the model that it was made from")));
  EXPECT_THAT(error("org/repo-AWQ", "model.safetensors"),
              AllOf(HasSubstr("AWQ"), HasSubstr("strata models search repo-AWQ")));
  in_gguf = {{.repo = "ggml-org/repo-GGUF"}, {.repo = "other/repo-GGUF"}};
  EXPECT_THAT(error("org/repo", "model.safetensors"),
              HasSubstr("in GGUF it is hf:ggml-org/repo-GGUF, hf:other/repo-GGUF"));
}

TEST_F(HubClientTest, SearchAsksForGgufAlone) {
  const FakeHub hub([](const FakeRequest&) {
    return FakeReply{.body = R"([{"id": "org/a", "downloads": 7, "gated": "manual"}, 5, {},
        {"id": "../x"}, {"id": "org/b:Q4", "downloads": 9}, {"id": "org/b", "gated": false},
        {"id": "org/c"}])"};
  });
  const auto found = ClientOf(hub, "hf_secret").Search("a b&c/d", 2);
  ASSERT_THAT(found, IsOk());
  ASSERT_EQ(found->size(), 2);
  EXPECT_EQ((*found)[0].repo, "org/a");
  EXPECT_EQ((*found)[0].downloads, 7);
  EXPECT_TRUE((*found)[0].is_gated);
  EXPECT_EQ((*found)[1].repo, "org/b");
  EXPECT_FALSE((*found)[1].is_gated);
  EXPECT_EQ(hub.requests()[0].path,
            "/api/models?search=a%20b%26c%2Fd&filter=gguf&sort=downloads&direction=-1&limit=2");
  EXPECT_EQ(hub.requests()[0].Header("authorization"), "Bearer hf_secret");
}

TEST_F(HubClientTest, SearchWithoutAnAnswerIsAnError) {
  FakeReply reply = {.body = "<html>"};
  const FakeHub hub([&](const FakeRequest&) { return reply; });
  EXPECT_THAT(ClientOf(hub).Search("a", 2),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("log-in page")));
  reply = {.status = 503};
  EXPECT_THAT(ClientOf(hub).Search("a", 2),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("try again later")));
}

TEST_F(HubClientTest, GgufIsLookedForByTheModelThatAnotherFormatWasMadeFrom) {
  const FakeHub hub([](const FakeRequest& request) {
    if (request.path.find("/revision/") != std::string::npos) {
      return FakeReply{.body = R"({"id": "org/repo-AWQ", "sha": "0123", "siblings": [],
          "tags": [7, "awq", "base_model:quantized:../x", "base_model:quantized:maker/repo"]})"};
    }
    return FakeReply{.body = R"([{"id": "ggml-org/repo-GGUF"}])"};
  });
  HubClient client = ClientOf(hub);
  const auto repo = client.ListRepository(source_);
  ASSERT_THAT(repo, IsOk());
  const auto found = client.FindGgufOf(*repo, 3);
  ASSERT_THAT(found, IsOk());
  ASSERT_EQ(found->size(), 1);
  EXPECT_EQ((*found)[0].repo, "ggml-org/repo-GGUF");
  EXPECT_EQ(hub.requests().back().path,
            "/api/models?filter=base_model%3Aquantized%3Amaker%2Frepo&filter=gguf"
            "&sort=downloads&direction=-1&limit=3");
  ASSERT_THAT(client.FindGgufOf({.repo = "org/repo"}, 3), IsOk());
  EXPECT_THAT(hub.requests().back().path, HasSubstr("quantized%3Aorg%2Frepo&"));
}

TEST_F(HubClientTest, TheTokenIsFoundWhereHuggingFacesProgramsLook) {
  const std::string folder = testing::MakeTestFolder();
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HOME",
                           "XDG_CACHE_HOME", "HF_ENDPOINT"}) {
    unsetenv(name);
  }
  setenv("HOME", folder.c_str(), 1);
  EXPECT_EQ(HubOptionsFromEnvironment().hf_token, "");
  std::filesystem::create_directories(folder + "/.cache/huggingface");
  std::ofstream(folder + "/.cache/huggingface/token") << "hf_default\n";
  EXPECT_EQ(HubOptionsFromEnvironment().hf_token, "hf_default");
  std::filesystem::create_directories(folder + "/hf");
  std::ofstream(folder + "/hf/token") << "hf_home";
  setenv("HF_HOME", (folder + "/hf").c_str(), 1);
  EXPECT_EQ(HubOptionsFromEnvironment().hf_token, "hf_home");
  std::ofstream(folder + "/mine") << "hf_path";
  setenv("HF_TOKEN_PATH", (folder + "/mine").c_str(), 1);
  EXPECT_EQ(HubOptionsFromEnvironment().hf_token, "hf_path");
  setenv("HUGGING_FACE_HUB_TOKEN", "hf_old", 1);
  EXPECT_EQ(HubOptionsFromEnvironment().hf_token, "hf_old");
  setenv("HF_TOKEN", " hf_variable\n", 1);
  EXPECT_EQ(HubOptionsFromEnvironment().hf_token, "hf_variable");
  setenv("HF_ENDPOINT", "https://hub.example/", 1);
  EXPECT_EQ(HubOptionsFromEnvironment().hf_endpoint, "https://hub.example");
}

}  // namespace
}  // namespace strata
