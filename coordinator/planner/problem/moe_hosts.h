// Devices whose routed experts the node's CPU keeps and computes (PlanDevice::moe_host). Internal
// to the planner; pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "coordinator/planner/problem/plan.h"

namespace strata {

// Whether this device computes experts for another one, and has no stage of its own.
bool IsMoeHost(const PlanRequest& request, size_t device);
// Whether this device's memory holds the experts of another device, which has memory of its own: a
// stage there would count on the same bytes.
bool SharesMoeHost(const PlanRequest& request, size_t device);
// The room in its host's memory for experts of stages on `device`: the devices with the same host
// that may get a stage share evenly what their token embeddings and logits leave.
uint64_t MoeHostBytes(const PlanRequest& request, const PlanDevice& device);

// Copies of these devices, in this order, followed by the hosts of their experts.
std::vector<PlanDevice> WithMoeHosts(const PlanRequest& request,
                                     const std::vector<size_t>& devices);

}  // namespace strata
