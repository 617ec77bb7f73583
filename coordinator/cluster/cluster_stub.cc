#include "coordinator/cluster/cluster_stub.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "transport/rpc/grpc_channel.h"
#include "transport/rpc/grpc_deadline.h"
#include "transport/rpc/grpc_status.h"
#include "transport/rpc/printable_message.h"
#include "transport/rpc/status_details.h"

namespace strata {

ClusterStub::ClusterStub(std::string address, int64_t timeout_ms)
    : address_(std::move(address)),
      timeout_ms_(timeout_ms),
      stub_(wire::Cluster::NewStub(MakeChannel(address_, kPatientTimeoutMs))) {}

absl::StatusOr<wire::GetClusterResponse> ClusterStub::GetCluster(int64_t timeout_ms) {
  grpc::ClientContext context;
  context.set_deadline(DeadlineIn(absl::Milliseconds(timeout_ms)));
  wire::GetClusterResponse response;
  absl::Status status = Explain(stub_->GetCluster(&context, wire::GetClusterRequest(), &response));
  if (!status.ok()) return status;
  MakePrintable(&response);
  return response;
}

absl::StatusOr<wire::Epoch> ClusterStub::NextEpoch() {
  grpc::ClientContext context;
  context.set_deadline(DeadlineIn(absl::Milliseconds(timeout_ms_)));
  wire::Epoch epoch;
  absl::Status status = Explain(stub_->NextEpoch(&context, wire::NextEpochRequest(), &epoch));
  if (!status.ok()) return status;
  return epoch;
}

absl::Status ClusterStub::Explain(const grpc::Status& status) const {
  if (status.ok()) return absl::OkStatus();
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED ||
      status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    return absl::UnavailableError(absl::StrCat("no node answers at ", address_));
  }
  if (IsUnknownCall(status)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the program at ", address_, " is not a Strata node, or has another version"));
  }
  return Prefixed(address_, FromGrpc(status));
}

}  // namespace strata
