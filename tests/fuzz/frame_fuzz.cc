// The frame reader on any bytes, whole and in pieces, and the headers of the frames that it lets
// pass.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/crc/crc32c.h"
#include "absl/strings/string_view.h"
#include "proto/frame.pb.h"
#include "transport/link/frame.h"
#include "transport/rpc/grpc_status.h"

namespace strata {
namespace {

void Check(bool right) {
  if (!right) std::abort();
}

void ParseAsItsType(const Frame& frame) {
  wire::Hello hello;
  wire::Credit credit;
  wire::Status status;
  wire::Step step;
  wire::Result result;
  wire::StepError error;
  switch (frame.type) {
    case FrameType::kHello:
      (void)ParseHeader(frame, &hello);
      break;
    case FrameType::kCredit:
      (void)ParseHeader(frame, &credit);
      break;
    case FrameType::kClose:
      if (ParseHeader(frame, &status).ok()) (void)FromWire(status);
      break;
    case FrameType::kStep:
      (void)ParseHeader(frame, &step);
      break;
    case FrameType::kResult:
      (void)ParseHeader(frame, &result);
      break;
    case FrameType::kError:
      (void)ParseHeader(frame, &error);
      break;
  }
}

void Try(const std::string& bytes) {
  const auto whole = DecodeFrame(Payload::Own(bytes));

  // The same bytes in pieces, whose length the first byte gives, are the same frame.
  auto owner = std::make_shared<std::string>(bytes);
  const size_t piece = bytes.empty() ? 1 : 1 + static_cast<unsigned char>(bytes[0]);
  std::vector<absl::string_view> parts;
  for (size_t i = 0; i < owner->size(); i += piece) {
    parts.push_back(absl::string_view(*owner).substr(i, piece));
  }
  const auto pieces = DecodeFrame(parts, owner);
  Check(whole.status() == pieces.status());
  if (!whole.ok()) return;

  Check(whole->header == pieces->header && whole->type == pieces->type);
  Check(whole->payload.bytes() == pieces->payload.bytes());
  Check(EncodeFramePrefixAndHeader(*whole) + std::string(whole->payload.bytes()) == bytes);
  if (whole->payload.size() % sizeof(float) == 0) {
    for (float f : whole->payload.floats()) (void)f;
  }
  ParseAsItsType(*whole);
}

}  // namespace
}  // namespace strata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  strata::Try(bytes);
  if (size < strata::kFramePrefixBytes) return 0;

  // Again with right sizes and checksum, to get behind those checks.
  const size_t rest = size - strata::kFramePrefixBytes;
  const size_t header = rest == 0 ? 0 : static_cast<unsigned char>(bytes[12]) % (rest + 1);
  auto store = [&](size_t at, uint64_t value, size_t n) {
    for (size_t i = 0; i < n; ++i) bytes[at + i] = static_cast<char>(value >> (8 * i));
  };
  bytes.replace(0, 5, "STRF\1");
  bytes[5] = static_cast<char>(1 + static_cast<unsigned char>(bytes[5]) % 6);
  store(6, 0, 2);
  store(8, header, 4);
  store(16, rest - header, 8);
  const absl::string_view view = bytes;
  store(12,
        static_cast<uint32_t>(absl::ExtendCrc32c(absl::ComputeCrc32c(view.substr(0, 12)),
                                                 view.substr(strata::kFramePrefixBytes, header))),
        4);
  strata::Try(bytes);
  return 0;
}
