// A client of a node that is out of reach: every call ends with kUnavailable. Tests override the
// calls that are answered.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "coordinator/generation/node_client.h"

namespace strata::testing {

class UnreachableNode : public NodeClient {
 public:
  explicit UnreachableNode(const std::string& name, const std::string& id = "")
      : name_(name), id_(id.empty() ? name : id) {}

  const std::string& id() const override { return id_; }
  const std::string& name() const override { return name_; }
  const std::string& address() const override { return name_; }
  absl::StatusOr<wire::GetInfoResponse> GetInfo(int64_t) override { return Nobody(); }
  absl::StatusOr<std::vector<wire::SelfTest>> SelfTestsOf(const std::string&, int64_t) override {
    return Nobody();
  }
  absl::Status Measure(int64_t) override { return Nobody(); }
  absl::StatusOr<wire::ListLocalModelsResponse> ListLocalModels(int64_t) override {
    return Nobody();
  }
  absl::StatusOr<wire::ListKvCachesResponse> ListKvCaches(int64_t) override { return Nobody(); }
  absl::Status SetReplicaTargets(const wire::SetReplicaTargetsRequest&, int64_t) override {
    return Nobody();
  }
  absl::Status FetchWeights(const wire::FetchWeightsRequest&, int64_t) override { return Nobody(); }
  absl::Status ClearKvCaches(const std::string&, int64_t) override { return Nobody(); }
  absl::StatusOr<wire::StageInfo> LoadStage(const wire::StageSpec&, Progress) override {
    return Nobody();
  }
  absl::StatusOr<std::string> ShareModel(const std::string&) override { return Nobody(); }
  absl::StatusOr<wire::BlockList> ListBlocks(const std::string&) override { return Nobody(); }
  absl::Status ConnectStage(const wire::ConnectStageRequest&) override { return Nobody(); }
  absl::StatusOr<wire::MoveCachesResponse> MoveCaches(const wire::MoveCachesRequest&,
                                                      ShouldContinue) override {
    return Nobody();
  }
  absl::Status UnloadStage(const wire::UnloadStageRequest&, ShouldContinue) override {
    return Nobody();
  }
  CancelCall TokenizeAsync(const wire::TokenizeRequest&, Tokenized done) override {
    std::move(done)(Nobody());
    return [] {};
  }
  absl::Status SetDraining(bool) override { return Nobody(); }

 private:
  absl::Status Nobody() const {
    return absl::UnavailableError(absl::StrCat(name_, ": nobody there"));
  }

  const std::string name_, id_;
};

}  // namespace strata::testing
