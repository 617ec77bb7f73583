// Versions, which are exchanged at the start of every connection, and which of them may be mixed.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "proto/frame.pb.h"

namespace strata {

// Raised by any change that an older reader would misread.
inline constexpr uint32_t kProtocolVersion = 3;

// This process's versions: protocol, Strata, and the libllama and libggml it runs with.
const wire::Versions& LocalVersions();

// Activations of one libllama fed into another are only known to be right where it was tested. OK
// when the protocol, libllama and ggml versions are equal; kFailedPrecondition naming both sides
// otherwise. With `allow_mixed` only the protocol has to match.
struct VersionPolicy {
  bool allow_mixed = false;
};
absl::Status CheckVersions(const wire::Versions& local, const wire::Versions& peer,
                           VersionPolicy policy);

}  // namespace strata
