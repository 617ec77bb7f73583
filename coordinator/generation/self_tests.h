// Compares a stage's results for the self-test's input (shard/engine/self_test.h) with those of
// other devices, or of the same one earlier, for the same layers, whatever stages those were in.
// Devices that agree to within a tolerance have the same weights; the majority decides where they
// do not. Pure functions; any thread. Results from peers are untrusted.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/node.pb.h"

namespace strata {

// How far apart results of correct weights may be, as a share of what the layer adds to a row: for
// the worst row between devices of one kind with the same libraries, whose numbers differ in the
// last bits only, and for the median row between others, which may now and then choose other
// experts for a row.
inline constexpr double kSelfTestToleranceSameKind = 0.01;
inline constexpr double kSelfTestToleranceOtherKind = 0.25;

// Whether both are of the same stage on the same device; then the later one counts.
bool IsSameSelfTest(const wire::SelfTest& a, const wire::SelfTest& b);

// How far apart they are, as above. nullopt: they are results of different layers.
std::optional<double> ShareApart(const wire::SelfTestPoint& a, const wire::SelfTestPoint& b,
                                 bool same_kind);

// kDataLoss, marked with WithWrongNumbers(): `fresh` is not finite numbers, or for some layer more
// of `earlier` disagree with it than agree. The message says which layer, by how much, with which
// devices, and what to do; it does not name the stage or its node. OK: it may be right. Of results
// of the same stage and device (IsSameSelfTest) the latest counts.
absl::Status CheckSelfTest(const wire::SelfTest& fresh, absl::Span<const wire::SelfTest> earlier);

}  // namespace strata
