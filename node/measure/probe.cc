#include "node/measure/probe.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/json_util.h"
#include "node/base/machine.h"
#include "node/base/standard_output.h"
#include "proto/probe.pb.h"
#include "shard/device/device_probe.h"

namespace strata {
namespace {

wire::DeviceInfo Describe(const DeviceFacts& facts) {
  wire::DeviceInfo info;
  info.set_name(facts.name);
  info.set_description(facts.description);
  switch (facts.kind) {
    case DeviceFacts::Kind::kCpu:
      info.set_kind(wire::DeviceInfo::CPU);
      break;
    case DeviceFacts::Kind::kGpu:
      info.set_kind(wire::DeviceInfo::GPU);
      break;
    case DeviceFacts::Kind::kIntegratedGpu:
      info.set_kind(wire::DeviceInfo::INTEGRATED_GPU);
      break;
  }
  info.set_bus_id(facts.bus_id);
  info.set_memory_total(facts.memory_total_bytes);
  info.set_memory_free(facts.memory_free_bytes);
  info.set_shares_machine_memory(facts.shares_machine_memory);
  return info;
}

void AddSpeed(const DeviceSpeed& speed, wire::DeviceSpeed* out) {
  out->set_memory_bytes_per_s(speed.memory_bytes_per_s);
  out->set_op_s(speed.op_s);
  out->set_op_float_s(speed.op_float_s);
  for (const TypeSpeed& type : speed.types) {
    wire::TypeSpeed* added = out->add_types();
    added->set_type(type.type);
    added->mutable_bytes_per_s()->Add(type.bytes_per_s.begin(), type.bytes_per_s.end());
    if (type.expert_bytes_per_s[0] == 0) continue;
    added->mutable_expert_bytes_per_s()->Add(type.expert_bytes_per_s.begin(),
                                             type.expert_bytes_per_s.end());
  }
}

absl::Status Print(const wire::DeviceInfo& info) {
  std::string line;
  if (auto s = google::protobuf::util::MessageToJsonString(info, &line); !s.ok()) {
    return absl::InternalError(absl::StrCat(info.name(), ": ", s.ToString()));
  }
  line += '\n';
  return WriteToStdout(line);
}

}  // namespace

absl::Status RunProbe(const ProbeRunOptions& options) {
  const std::vector<DeviceFacts> devices = ListDevices();
  if (options.device.empty()) {
    for (const DeviceFacts& facts : devices) {
      if (absl::Status status = Print(Describe(facts)); !status.ok()) return status;
    }
    return absl::OkStatus();
  }
  const absl::StatusOr<DeviceSpeed> speed =
      ProbeDevice({.device = options.device,
                   .n_threads = options.n_threads != 0 ? options.n_threads : MachineCores(),
                   .budget = absl::Milliseconds(options.budget_ms)});
  if (!speed.ok()) return speed.status();
  for (const DeviceFacts& facts : devices) {
    if (facts.name != options.device) continue;
    wire::DeviceInfo info = Describe(facts);
    AddSpeed(*speed, info.mutable_speed());
    return Print(info);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(options.device, ": models cannot run on this device"));
}

}  // namespace strata
