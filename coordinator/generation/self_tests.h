// Compares what a stage computed of the self-test's input (shard/engine/self_test.h) with what
// other devices, or the same one earlier, computed with the same layers, whatever stages those were
// in. Devices that agree to within a tolerance have the same weights; the majority decides where
// they do not. Pure functions; any thread. What peers tell may be anything.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/node.pb.h"

namespace strata {

// How far apart results of right weights may be, as a share of what the layer adds to a row: the
// worst row of devices of one kind with the same libraries, whose numbers differ in the last bits
// only, and the median row of others, which may choose other experts for a row now and then.
inline constexpr double kSelfTestToleranceSameKind = 0.01;
inline constexpr double kSelfTestToleranceOtherKind = 0.25;

// Whether both are of the same stage on the same device: the later one counts.
bool IsSameSelfTest(const wire::SelfTest& a, const wire::SelfTest& b);

// How far apart they are, as above. None: they are not of the same numbers.
std::optional<double> ShareApart(const wire::SelfTestPoint& a, const wire::SelfTestPoint& b,
                                 bool same_kind);

// kDataLoss, marked with WithWrongNumbers(): `fresh` is not numbers, or of some layer more of
// `earlier` disagree with it than agree. The message says which layer, by how much, with whom, and
// what to do; it does not name the stage or its node. OK: it may be right. Of results that are the
// same one's, as IsSameSelfTest() says, the latest counts.
absl::Status CheckSelfTest(const wire::SelfTest& fresh, absl::Span<const wire::SelfTest> earlier);

}  // namespace strata
