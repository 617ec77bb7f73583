// A model by its name, as a person types it: fetched from a hub, loaded by nodes, and found again.
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/integration/two_nodes.h"
#include "tests/node/hub/fake_hub.h"
#include "tests/support/send_signal.h"
#include "tests/support/temp_folder.h"

namespace strata {
namespace {

using ::strata::testing::FakeHub;
using ::strata::testing::FakeReply;
using ::strata::testing::FakeRequest;
using ::strata::testing::RepositoryOf;
using ::strata::testing::ServeFile;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kCommit[] = "0123456789abcdef0123456789abcdef01234567";

class Hub : public testing::TwoNodes {
 protected:
  Hub() {
    std::ifstream in(STRATA_DEMO_MODEL, std::ios::binary);
    model_.assign(std::istreambuf_iterator<char>(in), {});
  }
  std::unique_ptr<Program> WithHub(std::vector<std::string> args) {
    return std::make_unique<Program>(
        std::move(args),
        std::vector<std::string>{"HF_ENDPOINT=" + hub_.url(), "XDG_CACHE_HOME=" + cache_,
                                 "HOME=" + cache_, "HF_TOKEN=hf_secret"});
  }
  static Json Listed(Program& models, const std::string& name) {
    EXPECT_EQ(models.ExitStatus(), 0) << models.err();
    const Json list = Json::parse(models.out(), nullptr, /*allow_exceptions=*/false);
    if (!list.is_object()) return nullptr;
    for (const Json& each : list["models"]) {
      if (each["name"] == name) return each;
    }
    return nullptr;
  }
  std::string PathOfModel() const {
    return absl::StrCat(cache_, "/strata/models/huggingface.co/org/tales/", kCommit,
                        "/tales-F16.gguf");
  }

  const std::string cache_ = testing::MakeTestFolder();
  std::string model_;
  bool is_slow_ = false;
  const FakeHub hub_{[this](const FakeRequest& request) {
    if (absl::StartsWith(request.path, "/api/models/org/tales/")) {
      return RepositoryOf("org/tales", kCommit, "tales-F16.gguf", model_);
    }
    if (absl::StartsWith(request.path, "/org/tales/resolve/")) {
      FakeReply reply = ServeFile(request, model_);
      if (is_slow_) reply.each_64_kib = absl::Milliseconds(50);
      return reply;
    }
    if (absl::StartsWith(request.path, "/api/models?search=tales&")) {
      return FakeReply{.body = R"([{"id": "org/tales", "downloads": 7}, {"id": "org/gone"}])"};
    }
    return FakeReply{.status = 404, .headers = {{"X-Error-Code", "RepoNotFound"}}};
  }};
};

// The bytes of models that a node keeps on its disk.
uint64_t BytesInCache(const std::string& data_folder) {
  uint64_t bytes = 0;
  std::error_code error;
  for (const auto& file :
       std::filesystem::recursive_directory_iterator(data_folder + "/weights", error)) {
    struct stat info = {};
    if (file.is_regular_file() && stat(file.path().c_str(), &info) == 0) {
      bytes += static_cast<uint64_t>(info.st_blocks) * 512;
    }
  }
  return bytes;
}

TEST_F(Hub, EachNodeFetchesItsOwnLayers) {
  constexpr uint64_t kHeaderBytes = 2 << 20;  // at most, with what is asked for beside them
  const auto load = WithHub({"load", "hf:org/tales", "--assign", "attic=0-2,cellar=3-5", "--seqs",
                             "1", "--ctx", "256", "--json", "--node", addresses_[1]});
  ASSERT_EQ(load->ExitStatus(), 0) << load->err();
  EXPECT_LE(hub_.body_bytes(), model_.size() + kHeaderBytes);
  EXPECT_FALSE(std::filesystem::exists(PathOfModel()));
  for (const std::string& folder : folders_) {
    EXPECT_LT(BytesInCache(folder), model_.size() * 3 / 4);
    EXPECT_GT(BytesInCache(folder), model_.size() / 4);
  }
  const std::vector<std::string> text = {
      "The old captain", "--max-tokens", "8", "--temperature", "0", "--json"};
  const auto run_of = [&](const std::string& model) {
    std::vector<std::string> args = {"run", model};
    args.insert(args.end(), text.begin(), text.end());
    return Run(0, args);
  };
  const std::string name = Json::parse(load->out())["model"];
  const Json of_slices = run_of(name);
  EXPECT_EQ(Run(0, {"unload", name, "--json"})["unloaded"], name);

  // Blocks that are in the caches are not fetched again.
  const uint64_t before = hub_.body_bytes();
  const auto again = WithHub({"load", "hf:org/tales", "--assign", "attic=0-2,cellar=3-5", "--seqs",
                              "1", "--ctx", "256", "--json", "--node", addresses_[0]});
  ASSERT_EQ(again->ExitStatus(), 0) << again->err();
  EXPECT_LE(hub_.body_bytes() - before, kHeaderBytes);
  EXPECT_EQ(run_of(name)["text"], of_slices["text"]);
  EXPECT_EQ(Run(0, {"unload", name, "--json"})["unloaded"], name);
  EXPECT_EQ(run_of(STRATA_DEMO_MODEL)["text"], of_slices["text"]);
}

TEST_F(Hub, RunFetchesTheModelThatIsNamed) {
  const auto run = WithHub({"run", "hf:org/tales", "The old captain", "--max-tokens", "8",
                            "--temperature", "0", "--json", "--whole", "--node", addresses_[0]});
  ASSERT_EQ(run->ExitStatus(), 0) << run->err();
  const Json of_file = Run(0, {"run", STRATA_DEMO_MODEL, "The old captain", "--max-tokens", "8",
                               "--temperature", "0", "--json"});
  EXPECT_EQ(Json::parse(run->out())["text"], of_file["text"]);

  // It is here now: nobody outside is asked.
  const size_t before = hub_.requests().size();
  const auto load = WithHub({"load", "org/tales", "--json", "--node", addresses_[1]});
  ASSERT_EQ(load->ExitStatus(), 0) << load->err();
  const auto plan = WithHub({"plan", "org/tales:f16", "--node", addresses_[0]});
  EXPECT_EQ(plan->ExitStatus(), 0) << plan->err();
  EXPECT_EQ(hub_.requests().size(), before);

  const auto models = WithHub({"models", "--json", "--node", addresses_[0]});
  ASSERT_EQ(models->ExitStatus(), 0) << models->err();
  const Json listed = Listed(*models, "hf:org/tales:F16");
  ASSERT_TRUE(listed.is_object()) << models->out();
  EXPECT_EQ(listed["path"], PathOfModel());
  EXPECT_EQ(listed["quant"], "F16");
  EXPECT_EQ(listed["bytes"], model_.size());
  EXPECT_EQ(listed["loaded"], true);
  EXPECT_EQ(listed["ctx_max"], 1024);
  const auto kept = WithHub({"rm", "hf:org/tales", "--yes", "--node", addresses_[0]});
  EXPECT_EQ(kept->ExitStatus(), 3);
  EXPECT_THAT(kept->err(), HasSubstr("is loaded; strata unload"));
}

TEST_F(Hub, AModelHasANameOfOnesOwnUntilItIsRemoved) {
  const std::string data = cache_ + "/data";
  const auto with_data = [&](std::vector<std::string> args) {
    args.insert(args.end(), {"--node", addresses_[0], "--data-dir", data});
    return WithHub(std::move(args));
  };
  ASSERT_EQ(WithHub({"pull", "hf:org/tales"})->ExitStatus(), 0);
  ASSERT_EQ(with_data({"alias", "fast", "org/tales"})->ExitStatus(), 0);
  const auto pulled = WithHub({"pull", "fast", "--data-dir", data});
  ASSERT_EQ(pulled->ExitStatus(), 0) << pulled->err();
  EXPECT_EQ(pulled->out(), PathOfModel());
  for (const char* name : {"qwen3-8b", "FAST", "../x"}) {
    const auto clash = with_data({"alias", name, "org/tales"});
    EXPECT_NE(clash->ExitStatus(), 0) << name;
    EXPECT_EQ(clash->err_lines().size(), 1) << clash->err();
  }
  const auto load = with_data({"load", "fast", "--json"});
  ASSERT_EQ(load->ExitStatus(), 0) << load->err();
  ASSERT_EQ(with_data({"unload", "fast"})->ExitStatus(), 0);

  const auto models = with_data({"models", "--json"});
  const Json listed = Listed(*models, "hf:org/tales:F16");
  ASSERT_TRUE(listed.is_object()) << models->out();
  EXPECT_EQ(listed["aliases"], Json::array({"fast"}));
  EXPECT_EQ(listed["loaded"], false);
  EXPECT_EQ(listed["fits"], true) << listed;
  EXPECT_GT(listed["tokens_per_second"], 0) << listed;

  const auto near = with_data({"load", "fats"});
  EXPECT_EQ(near->ExitStatus(), 3);
  EXPECT_THAT(near->err(), HasSubstr("near are: fast"));

  EXPECT_EQ(with_data({"rm", "fast"})->ExitStatus(), 3) << "nobody is there to be asked";
  const auto removed = with_data({"rm", "fast", "--yes", "--json"});
  ASSERT_EQ(removed->ExitStatus(), 0) << removed->err();
  EXPECT_EQ(Json::parse(removed->out())["freed_bytes"], model_.size());
  EXPECT_FALSE(std::filesystem::exists(PathOfModel()));
  ASSERT_EQ(with_data({"alias", "--remove", "fast"})->ExitStatus(), 0);
  const auto left = with_data({"alias", "--json"});
  ASSERT_EQ(left->ExitStatus(), 0) << left->err();
  EXPECT_EQ(left->out(), R"({"aliases":{}})");
}

TEST_F(Hub, SearchSaysWhatTheClusterHolds) {
  const auto search = WithHub({"models", "search", "tales", "--json", "--node", addresses_[0]});
  ASSERT_EQ(search->ExitStatus(), 0) << search->err();
  const Json found = Json::parse(search->out())["models"];
  ASSERT_EQ(found.size(), 2) << found;
  EXPECT_EQ(found[0]["name"], "hf:org/tales");
  EXPECT_EQ(found[0]["downloads"], 7);
  EXPECT_EQ(found[0]["best"], "F16");
  EXPECT_EQ(found[0]["quants"][0]["fits"], true);
  EXPECT_THAT(found[1]["why"].get<std::string>(), HasSubstr("no such repository"));
  const auto catalogue = WithHub({"models", "--catalog", "--json", "--node", addresses_[0]});
  ASSERT_EQ(catalogue->ExitStatus(), 0) << catalogue->err();
  const Json known = Json::parse(catalogue->out())["models"];
  ASSERT_GT(known.size(), 12);
  EXPECT_EQ(known[0]["here"], false);
  EXPECT_TRUE(known[0]["fits"].is_boolean());
  EXPECT_EQ(WithHub({"models", "search", "tales", "--offline"})->ExitStatus(), 1);
}

TEST_F(Hub, PullPrintsThePathAlone) {
  const auto pull = WithHub({"pull", "hf:org/tales"});
  ASSERT_EQ(pull->ExitStatus(), 0) << pull->err();
  EXPECT_EQ(pull->out(), PathOfModel());
  const auto again = WithHub({"pull", "hf:org/tales", "--json", "--offline"});
  ASSERT_EQ(again->ExitStatus(), 0) << again->err();
  const Json json = Json::parse(again->out());
  EXPECT_EQ(json["path"], PathOfModel());
  EXPECT_EQ(json["was_here"], true);
  EXPECT_EQ(json["quant"], "F16");
}

TEST_F(Hub, AnInterruptKeepsWhatCame) {
  is_slow_ = true;
  const auto pull = WithHub({"pull", "hf:org/tales"});
  ASSERT_TRUE(pull->Says(" MiB of "));
  const auto unfinished = [&] {
    const auto models = WithHub({"models", "--json", "--node", addresses_[0]});
    EXPECT_EQ(models->ExitStatus(), 0) << models->err();
    const Json list = Json::parse(models->out(), nullptr, /*allow_exceptions=*/false);
    return list.is_object() && list["unfinished"].size() == 1 ? list["unfinished"][0] : Json();
  };
  EXPECT_EQ(unfinished()["fetching"], true);
  const auto refused = WithHub({"rm", "hf:org/tales", "--yes", "--node", addresses_[0]});
  EXPECT_EQ(refused->ExitStatus(), 3);
  EXPECT_THAT(refused->err(), HasSubstr("another process is fetching " + PathOfModel()));
  testing::SendSignal((*pull)->pid(), SIGINT);
  EXPECT_EQ(pull->ExitStatus(), 130);
  EXPECT_THAT(pull->err(), HasSubstr("what came is kept"));
  EXPECT_FALSE(std::filesystem::exists(PathOfModel()));
  const Json left = unfinished();
  EXPECT_EQ(left["name"], "hf:org/tales:F16");
  EXPECT_EQ(left["path"], PathOfModel());
  EXPECT_EQ(left["bytes"], model_.size());
  EXPECT_GT(left["bytes_here"], model_.size() / 20);
  EXPECT_EQ(left["fetching"], false);
  is_slow_ = false;
  const uint64_t before = hub_.body_bytes();
  const auto again = WithHub({"pull", "hf:org/tales"});
  ASSERT_EQ(again->ExitStatus(), 0) << again->err();
  EXPECT_LE(hub_.body_bytes() - before, model_.size() * 19 / 20);
  EXPECT_TRUE(unfinished().is_null());
}

// Of a node that is killed: the other one gets its layers from the server.
TEST_F(Hub, ALostStageIsFetchedFromTheServerByAnotherNode) {
  const size_t stays = Coordinator(), dies = 1 - stays;
  const auto load = WithHub({"load", "hf:org/tales", "--assign", "attic=0-2,cellar=3-5", "--seqs",
                             "1", "--ctx", "256", "--json", "--node", addresses_[stays]});
  ASSERT_EQ(load->ExitStatus(), 0) << load->err();
  const std::string name = Json::parse(load->out())["model"];
  const auto text = [&] {
    return Run(stays, {"run", name, "The old captain", "--max-tokens", "8", "--temperature", "0",
                       "--json"});
  };
  const Json before = text();
  ASSERT_TRUE(before.is_object()) << before;
  const uint64_t body_bytes = hub_.body_bytes();
  nodes_[dies].reset();
  Json after;
  ASSERT_TRUE(Eventually([&] {
    after = text();
    return after.is_object();
  })) << after;
  EXPECT_EQ(after["text"], before["text"]);
  EXPECT_GT(hub_.body_bytes() - body_bytes, model_.size() / 4);
  EXPECT_LT(hub_.body_bytes() - body_bytes, model_.size() * 3 / 4);
  EXPECT_GT(BytesInCache(folders_[stays]), model_.size() * 9 / 10);
}

TEST_F(Hub, ErrorsAreOneLineAndSayWhatToDo) {
  const auto unknown = WithHub({"run", "hf:org/none", "x", "--node", addresses_[0]});
  EXPECT_EQ(unknown->ExitStatus(), 3);
  EXPECT_THAT(unknown->err(), HasSubstr("hf:org/none: there is no such repository"));
  const auto quant = WithHub({"load", "hf:org/tales:Q4_K_M", "--node", addresses_[0]});
  EXPECT_EQ(quant->ExitStatus(), 3);
  EXPECT_THAT(quant->err(), HasSubstr("there is no Q4_K_M; there are F16"));
  const auto path = WithHub({"plan", "moldes/tales", "--node", addresses_[0]});
  EXPECT_EQ(path->ExitStatus(), 3);
  EXPECT_THAT(path->err(), HasSubstr("moldes/tales: no such file here, and"));
  for (const char* name : {"hf:../tales", "hf:org/ta les", "hf:org"}) {
    const auto wrong = WithHub({"pull", name});
    EXPECT_EQ(wrong->ExitStatus(), 3);
    EXPECT_EQ(wrong->err_lines().size(), 1) << wrong->err();
    EXPECT_THAT(wrong->out(), IsEmpty());
  }
}

}  // namespace
}  // namespace strata
