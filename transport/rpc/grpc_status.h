// Statuses as they travel: absl::Status in the program, grpc::Status at the end of a call,
// wire::Status inside a message. Codes are the same numbers in all three. Thread-safe.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/support/status.h"
#include "proto/frame.pb.h"

namespace strata {

// Longest message of a status that leaves the process, bytes as sent: gRPC percent-encodes it into
// trailers that may have 8 KiB in all. Of a longer one the middle is left out, because the first
// words say what failed and the last ones (a worker's stderr) why.
inline constexpr size_t kStatusMessageBytesMax = 6 * 1024;

// How the details of a status begin that ToGrpc() made.
inline constexpr char kStatusMark[] = "strata";

grpc::Status ToGrpc(const absl::Status& status);
// Whether the program at the other end said it, in words for people; else gRPC did, of a connection
// or a call that failed.
bool SaidByPeer(const grpc::Status& status);
// Whether a message of the call was none that protobuf takes: an error of this call alone, which
// says nothing of the other end's version or health.
bool IsUnreadable(const grpc::Status& status);
// Whether the other end has no such call: it is another program, or another version of this one.
bool IsUnknownCall(const grpc::Status& status);
// What a peer says is made printable; its lines stay. An unknown code becomes kUnknown, and an
// unreadable message kInternal.
absl::Status FromGrpc(const grpc::Status& status);

// `where` names the stage, for example "stage 2 (layers 16-23)"; empty: nowhere.
void ToWire(const absl::Status& status, absl::string_view where, wire::Status* out);
// "where: message"; printable, but with lines.
absl::Status FromWire(const wire::Status& status);

// `text` with every byte that is not part of valid UTF-8 replaced by '?': protobuf strings must be
// UTF-8, and what a dying process wrote may be cut anywhere.
std::string ValidUtf8(absl::string_view text);

}  // namespace strata
