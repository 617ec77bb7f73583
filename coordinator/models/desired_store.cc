#include "coordinator/models/desired_store.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "coordinator/membership/membership_wire.h"
#include "shard/model/weight_blocks.h"

namespace strata {
namespace {

constexpr absl::string_view kName = "strata desired state ";
constexpr absl::string_view kVersion = "1\n";
// Then the BLAKE3 of the rest: the owner's line, and a wire::HeartbeatDetails.

}  // namespace

std::string FormatDesiredState(const DesiredState& desired, absl::string_view owner) {
  wire::HeartbeatDetails details;
  SetDesired(desired, &details);
  const std::string rest = absl::StrCat(owner, "\n", details.SerializeAsString());
  return absl::StrCat(kName, kVersion, HashOfBytes(rest), rest);
}

absl::StatusOr<DesiredState> ParseDesiredState(absl::string_view bytes, absl::string_view owner) {
  if (!absl::ConsumePrefix(&bytes, kName)) return absl::DataLossError("it is damaged");
  if (!absl::ConsumePrefix(&bytes, kVersion)) {
    return absl::DataLossError("it is damaged, or of a newer version of strata");
  }
  if (bytes.size() < kWeightHashBytes ||
      HashOfBytes(bytes.substr(kWeightHashBytes)) != bytes.substr(0, kWeightHashBytes)) {
    return absl::DataLossError("it is damaged");
  }
  bytes.remove_prefix(kWeightHashBytes);
  if (!absl::ConsumePrefix(&bytes, absl::StrCat(owner, "\n"))) {
    return absl::FailedPreconditionError("it is another node's, or of another cluster or key");
  }
  wire::HeartbeatDetails details;
  if (!details.ParseFromString(std::string(bytes))) return absl::DataLossError("it is damaged");
  return DesiredFromWire(details);
}

absl::StatusOr<DesiredStatePtr> DesiredStore::Open(const absl::StatusOr<std::string>& file,
                                                   const std::string& owner) {
  if (absl::IsNotFound(file.status())) return nullptr;
  if (!file.ok()) return file.status();
  absl::StatusOr<DesiredState> desired = ParseDesiredState(*file, owner);
  if (!desired.ok()) return desired.status();
  settled_ = desired->version;
  wanted_ = tried_ = {std::make_shared<const DesiredState>(*std::move(desired)), owner};
  return wanted_.desired;
}

void DesiredStore::OnSetAside(const absl::Status& why, const absl::StatusOr<std::string>& name) {
  problem_ = absl::StrCat(
      "the list of models that are to stay loaded is not read from this node's disk (",
      why.message(), "); ",
      name.ok() ? absl::StrCat("the file is ", *name, " now")
                : absl::StrCat("nor can the file be set aside: ", name.status().message()),
      "; other nodes' lists count, and what is missing is loaded with strata load");
}

void DesiredStore::Keep(const DesiredStatePtr& desired, const std::string& owner) {
  // Nobody ever changed it: there is nothing to keep.
  if (desired->version == DesiredVersion()) return;
  wanted_ = {desired, owner};
}

std::string DesiredStore::BeginWrite() {
  writing_ = true;
  tried_ = wanted_;
  return FormatDesiredState(*tried_.desired, tried_.owner);
}

void DesiredStore::EndWrite(const absl::Status& status) {
  writing_ = false;
  write_problem_ =
      status.ok()
          ? ""
          : absl::StrCat("which models are to stay loaded is not kept on this node's disk: ",
                         status.message());
  if (tried_.desired != nullptr) settled_ = std::max(settled_, tried_.desired->version);
}

}  // namespace strata
