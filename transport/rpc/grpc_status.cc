#include "transport/rpc/grpc_status.h"

#include <cstdint>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "transport/base/printable_text.h"
#include "transport/rpc/status_details.h"

namespace strata {
namespace {

absl::StatusCode CodeFrom(int code) {
  // Values outside the enumeration become kUnknown.
  return absl::Status(static_cast<absl::StatusCode>(code), "").code();
}

// Bytes that gRPC sends for `c` in a status message.
size_t EncodedBytes(unsigned char c) { return c < ' ' || c > '~' || c == '%' ? 3 : 1; }

size_t EncodedBytes(absl::string_view text) {
  size_t n = 0;
  for (unsigned char c : text) n += EncodedBytes(c);
  return n;
}

// gRPC's message to the client of a unary call whose response protobuf could not parse.
constexpr absl::string_view kNoMessage = "No message returned for unary request";

std::string Bounded(absl::string_view bytes) {
  // Each byte becomes at most the six bytes of an escape.
  const std::string text = PrintableLines(bytes, 6 * bytes.size());
  if (EncodedBytes(text) <= kStatusMessageBytesMax) return text;
  constexpr size_t kHalf = kStatusMessageBytesMax / 2 - 16;
  size_t head = 0;
  for (size_t n = 0; head < text.size(); ++head) {
    n += EncodedBytes(static_cast<unsigned char>(text[head]));
    if (n > kHalf) break;
  }
  size_t tail = text.size();
  for (size_t n = 0; tail > head; --tail) {
    n += EncodedBytes(static_cast<unsigned char>(text[tail - 1]));
    if (n > kHalf) break;
  }
  // A character that would be cut in two is left out.
  auto continues = [&](size_t i) { return (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80; };
  for (int i = 0; i < 3 && head > 0 && continues(head); ++i) --head;
  for (int i = 0; i < 3 && tail < text.size() && continues(tail); ++i) ++tail;
  return absl::StrCat(absl::string_view(text).substr(0, head), " [...] ",
                      absl::string_view(text).substr(tail));
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), Bounded(status.message()),
                      absl::StrCat(kStatusMark, DetailsText(status)));
}

bool IsFromPeer(const grpc::Status& status) {
  return absl::StartsWith(status.error_details(), kStatusMark);
}

bool IsUnreadable(const grpc::Status& status) {
  if (IsFromPeer(status)) return false;
  return (status.error_code() == grpc::StatusCode::UNIMPLEMENTED &&
          status.error_message() == kNoMessage) ||
         (status.error_code() == grpc::StatusCode::INTERNAL && status.error_message().empty());
}

bool IsUnknownCall(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNIMPLEMENTED && !IsFromPeer(status) &&
         !IsUnreadable(status);
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  if (IsUnreadable(status)) {
    return absl::InternalError("a message of this call cannot be read by its receiver");
  }
  absl::Status plain(CodeFrom(status.error_code()), PrintableLines(status.error_message()));
  const std::string details = status.error_details();
  absl::string_view text = details;
  if (!absl::ConsumePrefix(&text, kStatusMark)) return plain;
  return WithDetails(std::move(plain), text);
}

void ToWire(const absl::Status& status, absl::string_view where, wire::Status* out) {
  out->Clear();
  if (status.ok()) return;
  out->set_code(static_cast<int32_t>(status.code()));
  out->set_message(Bounded(status.message()));
  out->set_where(Bounded(where));
}

absl::Status FromWire(const wire::Status& status) {
  if (status.code() == 0) return absl::OkStatus();
  const std::string message = PrintableLines(status.message());
  if (status.where().empty()) return absl::Status(CodeFrom(status.code()), message);
  return absl::Status(CodeFrom(status.code()),
                      absl::StrCat(PrintableText::From(status.where()), ": ", message));
}

}  // namespace strata
