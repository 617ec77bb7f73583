// Conversions of statuses: absl::Status in the program, grpc::Status at the end of a call,
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
// trailers that may have 8 KiB in all. A longer message loses its middle, because its beginning
// says what failed and its end (a worker's stderr) why.
inline constexpr size_t kStatusMessageBytesMax = 6 * 1024;

// The beginning of the details of every status that ToGrpc() makes.
inline constexpr char kStatusMark[] = "strata";

grpc::Status ToGrpc(const absl::Status& status);
// Whether the status, with its message for people, comes from the peer's program; else gRPC made
// it, for a connection or a call that failed.
bool IsFromPeer(const grpc::Status& status);
// Whether protobuf could not parse a message of the call: an error of this call alone, which says
// nothing of the other end's version or health.
bool IsUnreadable(const grpc::Status& status);
// Whether the other end has no such call: it is another program, or another version of this one.
bool IsUnknownCall(const grpc::Status& status);
// A peer's message is made printable; its line feeds stay. An unknown code becomes kUnknown, and an
// unreadable message kInternal.
absl::Status FromGrpc(const grpc::Status& status);

// `where` names the stage, for example "stage 2 (layers 16-23)"; empty: nowhere.
void ToWire(const absl::Status& status, absl::string_view where, wire::Status* out);
// "where: message"; printable, but with lines.
absl::Status FromWire(const wire::Status& status);

}  // namespace strata
