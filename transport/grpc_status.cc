#include "transport/grpc_status.h"

#include <cstdint>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "transport/status_details.h"

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

std::string Bounded(absl::string_view text) {
  if (EncodedBytes(text) <= kStatusMessageBytesMax) return ValidUtf8(text);
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
  // A character cut in two is left out whole.
  auto continues = [&](size_t i) { return (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80; };
  for (int i = 0; i < 3 && head > 0 && continues(head); ++i) --head;
  for (int i = 0; i < 3 && tail < text.size() && continues(tail); ++i) ++tail;
  return ValidUtf8(absl::StrCat(text.substr(0, head), " [...] ", text.substr(tail)));
}

// Length of the valid UTF-8 sequence at the start of `s`, 0 when there is none.
size_t SequenceBytes(absl::string_view s) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char c = byte(0);
  if (c < 0x80) return 1;
  const size_t n = c >= 0xC2 && c <= 0xDF   ? 2
                   : c >= 0xE0 && c <= 0xEF ? 3
                   : c >= 0xF0 && c <= 0xF4 ? 4
                                            : 0;
  if (n == 0 || s.size() < n) return 0;
  for (size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  if (c == 0xE0 && byte(1) < 0xA0) return 0;  // longer than needed
  if (c == 0xED && byte(1) > 0x9F) return 0;  // surrogates
  if (c == 0xF0 && byte(1) < 0x90) return 0;  // longer than needed
  if (c == 0xF4 && byte(1) > 0x8F) return 0;  // beyond U+10FFFF
  return n;
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), Bounded(status.message()),
                      absl::StrCat(kStatusMark, DetailsText(status)));
}

bool SaidByPeer(const grpc::Status& status) {
  return absl::StartsWith(status.error_details(), kStatusMark);
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status said(CodeFrom(status.error_code()), status.error_message());
  const std::string details = status.error_details();
  absl::string_view text = details;
  if (!absl::ConsumePrefix(&text, kStatusMark)) return said;
  return WithDetails(std::move(said), text);
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
  if (status.where().empty()) return absl::Status(CodeFrom(status.code()), status.message());
  return absl::Status(CodeFrom(status.code()),
                      absl::StrCat(status.where(), ": ", status.message()));
}

std::string ValidUtf8(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t n = SequenceBytes(text);
    if (n == 0) {
      out.push_back('?');
      text.remove_prefix(1);
    } else {
      out.append(text.substr(0, n));
      text.remove_prefix(n);
    }
  }
  return out;
}

}  // namespace strata
