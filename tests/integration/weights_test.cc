// Nodes of which only one has the model's file: the others get their layers from it, and from each
// other.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/generation/generation_engine.h"
#include "coordinator/generation/node_client.h"
#include "coordinator/generation/pipeline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "node/workers/child_process.h"
#include "shard/model/model_file.h"
#include "tests/support/taken_port.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_key.h"

namespace strata {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kStartTime = absl::Seconds(60);
// Each node has a folder of its own for this, and only one has the file there.
constexpr char kModel[] = "model.gguf";
constexpr uint32_t kContext = 128;
constexpr int64_t kCallMs = 10'000;

// A node that runs in `folder`.
class FolderNode {
 public:
  FolderNode(const std::string& name, const std::string& folder, const char* more_args = "")
      : folder_(folder) {
    ChildProcess::Options options;
    options.program = "/bin/sh";
    options.args = {"sh", "-c",
                    absl::StrCat("cd ", folder, " && exec ", STRATA_PROGRAM,
                                 " node --listen 127.0.0.1:0 --no-mdns --ephemeral --threads 1"
                                 " --stop-with-parent --verbose --cache-dir cache ",
                                 more_args, " --name ", name)};
    options.on_stdout_line = [this](absl::string_view line) {
      const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!json.is_object() || !json.contains("node")) return;
      absl::MutexLock lock(mu_);
      address_ = json["node"].value("address", "");
    };
    options.on_stderr_line = [this](absl::string_view line) {
      absl::MutexLock lock(mu_);
      absl::StrAppend(&log_, line, "\n");
    };
    auto started = ChildProcess::Start(std::move(options));
    EXPECT_TRUE(started.ok()) << started.status();
    process_ = *std::move(started);
    absl::MutexLock lock(mu_);
    const auto is_up = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !address_.empty(); };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&is_up), kStartTime));
    testing::UseTestKey();
    auto client = NodeClient::Connect({.address = address_});
    EXPECT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }

  NodeClient* client() { return client_.get(); }
  void Kill() {
    process_->Kill();
    EXPECT_TRUE(process_->WaitForExit(kStartTime));
  }

  // Bytes that it said it got from the node at `address`, in all of its fetches, to a tenth of a
  // MiB.
  double MebibytesFrom(const std::string& address) const {
    absl::MutexLock lock(mu_);
    double sum = 0;
    const std::string after = absl::StrCat(" MiB from ", address);
    for (size_t at = log_.find(after); at != log_.npos; at = log_.find(after, at + 1)) {
      const size_t begin = log_.rfind(' ', at - 1) + 1;
      double mebibytes = 0;
      EXPECT_TRUE(absl::SimpleAtod(log_.substr(begin, at - begin), &mebibytes)) << log_;
      sum += mebibytes;
    }
    return sum;
  }

  // The disk space of the node's cache.
  uint64_t CacheBytes() const {
    uint64_t bytes = 0;
    for (const auto& file : std::filesystem::recursive_directory_iterator(folder_ + "/cache")) {
      struct stat info;
      if (lstat(file.path().c_str(), &info) == 0) bytes += static_cast<uint64_t>(info.st_blocks);
    }
    return bytes * 512;
  }

 private:
  const std::string folder_;
  mutable absl::Mutex mu_;
  std::string address_ ABSL_GUARDED_BY(mu_);
  std::string log_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<ChildProcess> process_;
  std::unique_ptr<NodeClient> client_;
};

// Keeps the tokens of one generation.
class TokenListener final : public GenerationListener {
 public:
  void OnToken(const wire::SampledToken& token) override { tokens_.push_back(token.token()); }
  void OnEnd(absl::Status status, FinishReason, const GenerationUsage&) override {
    status_ = std::move(status);
    ended_.Notify();
  }
  absl::Status Wait() {
    ended_.WaitForNotification();
    return status_;
  }
  // After Wait().
  const std::vector<int32_t>& tokens() const { return tokens_; }

 private:
  std::vector<int32_t> tokens_;
  absl::Status status_;
  absl::Notification ended_;
};

class WeightsReachTheNodes : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string folder = testing::MakeTestFolder();
    for (const char* name : {"with", "without", "other", "third"}) {
      std::filesystem::create_directory(absl::StrCat(folder, "/", name));
    }
    std::filesystem::copy_file(STRATA_DEMO_MODEL, absl::StrCat(folder, "/with/", kModel));
    folder_ = folder;
    with_ = std::make_unique<FolderNode>("with", folder + "/with");
    without_ = std::make_unique<FolderNode>("without", folder + "/without");
    auto model = ModelFile::Open(STRATA_DEMO_MODEL);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
  }

  struct Output {
    absl::Status status;
    std::vector<int32_t> tokens;
    std::vector<uint64_t> bytes_total;  // to load, by stage
  };
  // Loads the model on the nodes, cut at `cuts`, and writes a few tokens.
  Output Write(std::vector<NodeClient*> nodes, const std::vector<uint32_t>& cuts) {
    Output output;
    output.bytes_total.resize(nodes.size());
    PipelineOptions options;
    options.model_path = kModel;
    options.model_id = model_->id();
    options.epoch.set_counter(++epoch_);
    options.epoch.set_coordinator_id("test");
    uint32_t begin = 0;
    for (size_t i = 0; i < nodes.size(); ++i) {
      const uint32_t end = i < cuts.size() ? cuts[i] : model_->n_layer();
      options.stages.push_back({.layers = {std::exchange(begin, end), end},
                                .node = nodes[i],
                                .weight_peers = weight_peers_});
    }
    options.source = with_->client();
    options.n_ctx = kContext;
    options.n_batch = kContext;
    GenerationEngine engine({});
    auto pipeline =
        Pipeline::Build(options, &engine, [&](size_t stage, const wire::LoadProgress& progress) {
          output.bytes_total[stage] = std::max(output.bytes_total[stage], progress.bytes_total());
          return true;
        });
    output.status = pipeline.status();
    if (output.status.ok()) output.status = engine.Start(pipeline->get());
    if (!output.status.ok()) return output;
    GenerationRequest request;
    request.prompt = {1, 20, 30, 40, 50};
    request.tokens_max = 12;
    request.sampler.set_temperature(0);
    request.sampler.set_ignore_eog(true);
    const auto listener = std::make_shared<TokenListener>();
    output.status = engine.Add(std::move(request), listener).status();
    if (output.status.ok()) output.status = listener->Wait();
    output.tokens = listener->tokens();
    engine.Stop(absl::OkStatus());
    return output;
  }

  // The spec of a load on one node alone.
  wire::StageSpec SpecOf(LayerRange layers) {
    wire::StageSpec spec;
    spec.set_model_id(model_->id());
    spec.mutable_epoch()->set_counter(++epoch_);
    spec.mutable_epoch()->set_coordinator_id("test");
    spec.set_n_stages(1);
    spec.set_model_path(kModel);
    spec.mutable_layers()->set_begin(layers.begin);
    spec.mutable_layers()->set_end(layers.end);
    spec.set_n_ctx(kContext);
    spec.set_n_seq_max(1);
    spec.set_n_batch(kContext);
    spec.set_source_address(with_->client()->address());
    return spec;
  }

  std::string folder_;
  std::unique_ptr<FolderNode> with_, without_;
  std::shared_ptr<const ModelFile> model_;
  std::vector<NodeClient*> weight_peers_;
  uint64_t epoch_ = 0;
};

// What users of others miss: loading that does not send everything again, exo #2117, llama.cpp
// #10095 #8114 #25890.
TEST_F(WeightsReachTheNodes, OnlyOneNeedsTheFile) {
  const Output alone = Write({with_->client()}, {});
  ASSERT_TRUE(alone.status.ok()) << alone.status;
  ASSERT_EQ(alone.tokens.size(), 12u);

  const Output fetched = Write({with_->client(), without_->client()}, {2});
  ASSERT_TRUE(fetched.status.ok()) << fetched.status;
  EXPECT_EQ(fetched.tokens, alone.tokens);
  EXPECT_LT(without_->CacheBytes(), model_->tensor_bytes());

  const Output again = Write({with_->client(), without_->client()}, {2});
  ASSERT_TRUE(again.status.ok()) << again.status;
  EXPECT_EQ(again.tokens, alone.tokens);
  EXPECT_LT(again.bytes_total[1], fetched.bytes_total[1]);

  const Output first = Write({without_->client(), with_->client()}, {1});
  ASSERT_TRUE(first.status.ok()) << first.status;
  EXPECT_EQ(first.tokens, alone.tokens);
}

// The cache is removed or damaged under the running node, between two loads: with a stage that is
// the whole model, and with one that is a slice of it.
TEST_F(WeightsReachTheNodes, WhatBecomesOfTheCacheIsNoticedBeforeAToken) {
  namespace fs = std::filesystem;
  const std::string cached =
      absl::StrCat(folder_, "/without/cache/", absl::BytesToHexString(model_->id()));
  const std::string file = absl::StrCat(cached, "/", kModel);
  // The first byte of the largest tensor of layer 3, which no sample of the id has.
  uint64_t largest = 0, offset = 0;
  for (size_t i = 0; i < model_->header().tensors.size(); ++i) {
    const GgufTensor& tensor = model_->header().tensors[i];
    if (!absl::StartsWith(tensor.name, "blk.3.") || tensor.bytes <= largest) continue;
    largest = tensor.bytes;
    offset = model_->TensorAt(i).offset;
  }
  const std::vector<std::function<void()>> mishaps = {
      [&] { fs::remove_all(cached); }, [&] { fs::remove(file); },
      [&] { fs::resize_file(file, fs::file_size(file) / 2); },
      [&] {
        std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
        bytes.seekg(static_cast<std::streamoff>(offset));
        const char byte = static_cast<char>(bytes.get());
        bytes.seekp(static_cast<std::streamoff>(offset));
        bytes.put(static_cast<char>(byte ^ 0x40));
      }};
  const Output alone = Write({with_->client()}, {});
  ASSERT_TRUE(alone.status.ok()) << alone.status;
  const auto expect_same = [&] {
    const Output half = Write({with_->client(), without_->client()}, {2});
    ASSERT_TRUE(half.status.ok()) << half.status;
    EXPECT_EQ(half.tokens, alone.tokens);
  };
  const auto expect_same_of_whole = [&] {
    const Output whole = Write({without_->client()}, {});
    ASSERT_TRUE(whole.status.ok()) << whole.status;
    EXPECT_EQ(whole.tokens, alone.tokens);
  };
  expect_same();
  for (size_t i = 0; i < mishaps.size(); ++i) {
    SCOPED_TRACE(i);
    mishaps[i]();
    expect_same();
    expect_same_of_whole();
    mishaps[i]();
    expect_same_of_whole();
  }
}

// Each of two nodes has half of the model in its cache; a third one, which once got a layer from
// the node with the file and learnt all hashes then, needs it all when that node is gone.
TEST_F(WeightsReachTheNodes, PeersTogetherReplaceASourceThatIsGone) {
  FolderNode other("other", folder_ + "/other"), third("third", folder_ + "/third");
  const Output halves = Write({without_->client(), other.client()}, {3});
  ASSERT_TRUE(halves.status.ok()) << halves.status;
  const auto should_continue = [](const wire::LoadProgress&) { return true; };
  wire::StageSpec middle = SpecOf({2, 3});
  middle.set_stage(1);
  middle.set_n_stages(3);
  const auto one = third.client()->LoadStage(middle, should_continue);
  ASSERT_TRUE(one.ok()) << one.status();
  const double before = third.MebibytesFrom(with_->client()->address());
  EXPECT_GT(before, 0);
  with_->Kill();

  wire::StageSpec all = SpecOf({0, model_->n_layer()});
  for (NodeClient* const peer : {without_->client(), other.client()}) {
    all.add_weight_peers()->set_address(peer->address());
  }
  const auto loaded = third.client()->LoadStage(all, should_continue);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const double first = third.MebibytesFrom(without_->client()->address());
  const double second = third.MebibytesFrom(other.client()->address());
  EXPECT_GT(first, 0.5);
  EXPECT_GT(second, 0.5);
  const double bytes = static_cast<double>(model_->tensor_bytes()) / (1 << 20);
  EXPECT_NEAR(before + first + second, bytes, 0.3);
}

TEST_F(WeightsReachTheNodes, AStandbyNodeHasThemBeforeItNeedsThem) {
  ASSERT_TRUE(with_->client()->ShareModel(kModel).ok());
  wire::FetchWeightsRequest request;
  *request.mutable_spec() = SpecOf({2, model_->n_layer()});
  EXPECT_TRUE(absl::IsFailedPrecondition(without_->client()->FetchWeights(request, kCallMs)));
  FolderNode standby("other", folder_ + "/other", "--standby");
  const absl::Status asked = standby.client()->FetchWeights(request, kCallMs);
  ASSERT_TRUE(asked.ok()) << asked;
  const std::string source = with_->client()->address();
  for (int i = 0; i < 1000 && standby.MebibytesFrom(source) == 0; ++i) {
    absl::SleepFor(absl::Milliseconds(20));
  }
  EXPECT_GT(standby.MebibytesFrom(source), 1);
  with_->Kill();
  wire::StageSpec spec = SpecOf({2, model_->n_layer()});
  spec.set_stage(1);
  spec.set_n_stages(2);
  spec.clear_source_address();
  spec.set_no_source(true);
  const auto loaded =
      standby.client()->LoadStage(spec, [](const wire::LoadProgress&) { return true; });
  EXPECT_TRUE(loaded.ok()) << loaded.status();
}

TEST_F(WeightsReachTheNodes, AllThatHaveThemGiveThemAtOnce) {
  FolderNode third("third", folder_ + "/third");
  const Output all = Write({without_->client()}, {});
  ASSERT_TRUE(all.status.ok()) << all.status;
  weight_peers_ = {with_->client(), without_->client(), third.client()};
  const Output shared = Write({third.client()}, {});
  ASSERT_TRUE(shared.status.ok()) << shared.status;
  EXPECT_EQ(shared.tokens, all.tokens);
  const double sum = third.MebibytesFrom(with_->client()->address()) +
                     third.MebibytesFrom(without_->client()->address());
  EXPECT_NEAR(sum, static_cast<double>(model_->tensor_bytes()) / (1 << 20), 0.3);
}

TEST_F(WeightsReachTheNodes, ASourceThatIsGoneIsNamed) {
  with_->Kill();
  wire::StageSpec spec = SpecOf({0, 2});
  const auto loaded =
      without_->client()->LoadStage(spec, [](const wire::LoadProgress&) { return true; });
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kUnavailable) << loaded.status();
  EXPECT_THAT(std::string(loaded.status().message()), HasSubstr(with_->client()->address()));
  // Cancelled while it still tries: the call ends at once.
  const testing::TakenPort mute({});
  spec.set_source_address(mute.address());
  spec.mutable_epoch()->set_counter(++epoch_);
  const auto cancelled =
      without_->client()->LoadStage(spec, [](const wire::LoadProgress&) { return false; });
  EXPECT_EQ(cancelled.status().code(), absl::StatusCode::kCancelled) << cancelled.status();
}

}  // namespace
}  // namespace strata
