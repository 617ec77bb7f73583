#include "node/rpc/key_service.h"

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/log/log.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/membership/membership_wire.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "transport/base/run_on_loop.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_deadline.h"
#include "transport/rpc/grpc_status.h"
#include "transport/rpc/process_security.h"
#include "transport/security/cluster_key.h"

namespace strata {
namespace {

constexpr absl::Duration kStepLimit = absl::Seconds(5);
// Servers and workers read their certificates again each second, and may be slow at it.
constexpr absl::Duration kReadAgain = absl::Milliseconds(2'500);
// COMMIT calls to a node that has prepared the new key.
constexpr int kCommitTries = 5;

bool IsIdOrEmpty(const std::string& bytes) { return bytes.empty() || !IdOf(bytes).is_nobody(); }

bool IsRetryable(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

int64_t SleeplessNowMs() { return SleeplessClock()->NowUs() / 1000; }

}  // namespace

KeyService::Members KeyService::FindMembers(const std::string& remove) {
  Members members;
  RunOnLoop(loop_, [&] {
    const wire::GetClusterResponse cluster = cluster_->Describe();
    for (const wire::ClusterNode& node : cluster.nodes()) {
      if (node.record().node_id() == remove) continue;
      const bool is_here = node.state() == "alive" || node.state() == "suspected";
      if (node.record().node_id() == cluster.asked()) {
        members.here.push_back({node.record().name(), ""});
      } else if (is_here && !node.address().empty()) {
        members.here.push_back({node.record().name(), node.address()});
      } else {
        members.away.push_back(node.record().name());
      }
    }
  });
  return members;
}

grpc::Status KeyService::ChangeKey(grpc::ServerContext*, const wire::ChangeKeyRequest* request,
                                   wire::ChangeKeyResponse* response) {
  if (security_ == nullptr) {
    return ToGrpc(absl::FailedPreconditionError("these nodes are open: they have no key"));
  }
  if (!IsIdOrEmpty(request->remove())) {
    return ToGrpc(absl::InvalidArgumentError("that is no node's id"));
  }
  if (!request->remove().empty() && IdOf(request->remove()) == cluster_->id()) {
    return ToGrpc(absl::InvalidArgumentError(
        "a node does not remove itself: ask another one, with --node HOST:PORT"));
  }
  if (leads_.exchange(true)) {
    return ToGrpc(absl::AbortedError("the key is being changed already"));
  }
  const absl::Cleanup done = [this] { leads_ = false; };
  return ToGrpc(Lead(FindMembers(request->remove()), *request, response));
}

absl::Status KeyService::Lead(const Members& members, const wire::ChangeKeyRequest& request,
                              wire::ChangeKeyResponse* response) {
  const absl::StatusOr<ClusterKey> key = ClusterKey::New();
  if (!key.ok()) return key.status();
  wire::KeyStep step;
  step.set_key_id(key->id());
  step.set_kind(wire::KeyStep::PREPARE);
  step.set_key(key->ToText().Reveal());
  for (const Member& member : members.here) {
    const absl::Status status = Ask(member, step);
    if (status.ok()) continue;
    step.clear_key();
    step.set_kind(wire::KeyStep::ABANDON);
    for (const Member& other : members.here) Ask(other, step).IgnoreError();
    return absl::Status(status.code(), absl::StrCat(member.name, ": ", status.message(),
                                                    "; the key has not changed"));
  }
  step.clear_key();
  absl::SleepFor(kReadAgain);

  step.set_kind(wire::KeyStep::COMMIT);
  step.set_remove(request.remove());
  std::vector<Member> changed;
  for (const Member& member : members.here) {
    absl::Status status = Ask(member, step);
    for (int tries = 1; tries < kCommitTries && IsRetryable(status); ++tries) {
      absl::SleepFor(absl::Milliseconds(200));
      status = Ask(member, step);
    }
    if (status.ok()) {
      changed.push_back(member);
      response->add_changed(member.name);
    } else {
      LOG(ERROR) << member.name << " does not accept the new key: " << status.message();
      response->add_left_out(member.name);
    }
  }
  absl::SleepFor(kReadAgain);

  step.set_kind(wire::KeyStep::FINISH);
  for (const Member& member : changed) {
    if (absl::Status status = Ask(member, step); !status.ok()) {
      LOG(ERROR) << member.name << " still trusts the old key: " << status.message();
    }
  }
  for (const std::string& name : members.away) response->add_left_out(name);
  response->set_key_id(key->id());
  return absl::OkStatus();
}

absl::Status KeyService::Ask(const Member& member, const wire::KeyStep& step) {
  if (member.address.empty()) {
    absl::Status status;
    RunOnLoop(loop_, [&] { status = Take(step); });
    return status;
  }
  const auto stub = wire::Key::NewStub(MakeChannel(member.address, kPatientTimeoutMs));
  grpc::ClientContext context;
  context.set_deadline(DeadlineIn(kStepLimit));
  wire::KeyStepResponse response;
  return FromGrpc(stub->TakeStep(&context, step, &response));
}

grpc::Status KeyService::TakeStep(grpc::ServerContext*, const wire::KeyStep* request,
                                  wire::KeyStepResponse*) {
  if (security_ == nullptr) {
    return ToGrpc(absl::FailedPreconditionError("this node is open: it has no key"));
  }
  absl::Status status;
  RunOnLoop(loop_, [&] { status = Take(*request); });
  return ToGrpc(status);
}

absl::Status KeyService::Prepare(const wire::KeyStep& step) {
  absl::StatusOr<ClusterKey> key = ClusterKey::FromText(step.key());
  if (!key.ok()) return key.status();
  if (key->id() != step.key_id()) {
    return absl::InvalidArgumentError("the key does not match its id");
  }
  if (!changing_to_.empty() && changing_to_ != step.key_id() &&
      SleeplessNowMs() - changing_since_ms_ < kKeyChangeMs) {
    return absl::AbortedError("the key is being changed already");
  }
  if (auto status = security_->Trust(*std::move(key)); !status.ok()) return status;
  changing_to_ = step.key_id();
  changing_since_ms_ = SleeplessNowMs();
  return absl::OkStatus();
}

absl::Status KeyService::Take(const wire::KeyStep& step) {
  if (!IsIdOrEmpty(step.remove())) return absl::InvalidArgumentError("that is no node's id");
  if (step.kind() == wire::KeyStep::PREPARE) return Prepare(step);
  if (step.key_id() != changing_to_) {
    return absl::FailedPreconditionError("the key is not being changed to that one here");
  }
  switch (step.kind()) {
    case wire::KeyStep::COMMIT: {
      const std::string before = security_->cluster_id();
      if (auto status = security_->CommitKey(step.key_id()); !status.ok()) return status;
      cluster_->SetKeyId(step.key_id());
      if (!step.remove().empty() && before != step.key_id()) {
        RefuseNode(absl::BytesToHexString(step.remove()), before);
        cluster_->Remove(IdOf(step.remove()));
      }
      LOG(WARNING) << "the cluster's key has changed: its id was " << before << " and is "
                   << step.key_id();
      return absl::OkStatus();
    }
    case wire::KeyStep::FINISH:
      if (step.key_id() != security_->cluster_id()) {
        return absl::FailedPreconditionError("this node does not use the new key yet");
      }
      if (auto status = security_->ForgetOthers(); !status.ok()) return status;
      cluster_->LetRemovedReturn();
      changing_to_.clear();
      return absl::OkStatus();
    case wire::KeyStep::ABANDON:
      if (auto status = security_->Forget(step.key_id()); !status.ok()) return status;
      changing_to_.clear();
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError("no such step");
  }
}

}  // namespace strata
