#include "node/http/content_coding.h"

#include <zlib.h>
#include <zstd.h>

#include <array>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace strata {
namespace {

constexpr size_t kDecodeBytes = 64 * 1024;
// The largest window of HTTP's zstd (RFC 9659), 8 MiB.
constexpr int kZstdWindowLog = 23;

absl::Status NotInCoding(absl::string_view coding) {
  return absl::InvalidArgumentError(
      absl::StrCat("the body is not in Content-Encoding ", coding, ", or not whole"));
}

absl::Status TooLong(size_t bytes_max) {
  return absl::ResourceExhaustedError(
      absl::StrCat("the decoded body has more than ", bytes_max, " bytes"));
}

// "deflate" is zlib's format, but some clients send it without zlib's header.
bool HasZlibHeader(absl::string_view body) {
  if (body.size() < 2) return false;
  const auto first = static_cast<unsigned char>(body[0]);
  const auto second = static_cast<unsigned char>(body[1]);
  return (first & 0x0f) == Z_DEFLATED && (first * 256 + second) % 31 == 0;
}

absl::StatusOr<std::string> Inflate(absl::string_view coding, int window_bits,
                                    absl::string_view body, size_t bytes_max) {
  z_stream stream = {};
  if (inflateInit2(&stream, window_bits) != Z_OK) return absl::InternalError("zlib failed");
  const absl::Cleanup end = [&stream] { inflateEnd(&stream); };
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(body.data()));
  stream.avail_in = static_cast<uInt>(body.size());
  std::string decoded;
  std::array<char, kDecodeBytes> chunk;
  while (true) {
    stream.next_out = reinterpret_cast<Bytef*>(chunk.data());
    stream.avail_out = static_cast<uInt>(chunk.size());
    const int result = inflate(&stream, Z_NO_FLUSH);
    const size_t n = chunk.size() - stream.avail_out;
    if (decoded.size() + n > bytes_max) return TooLong(bytes_max);
    decoded.append(chunk.data(), n);
    if (result == Z_STREAM_END && stream.avail_in == 0) return decoded;
    if (result != Z_OK) return NotInCoding(coding);
  }
}

absl::StatusOr<std::string> DecodeZstd(absl::string_view body, size_t bytes_max) {
  const std::unique_ptr<ZSTD_DStream, decltype(&ZSTD_freeDStream)> stream(ZSTD_createDStream(),
                                                                          ZSTD_freeDStream);
  if (stream == nullptr ||
      ZSTD_isError(ZSTD_DCtx_setParameter(stream.get(), ZSTD_d_windowLogMax, kZstdWindowLog))) {
    return absl::InternalError("zstd failed");
  }
  ZSTD_inBuffer in = {.src = body.data(), .size = body.size(), .pos = 0};
  std::string decoded;
  std::array<char, kDecodeBytes> chunk;
  while (true) {
    ZSTD_outBuffer out = {.dst = chunk.data(), .size = chunk.size(), .pos = 0};
    const size_t read_before = in.pos;
    const size_t left = ZSTD_decompressStream(stream.get(), &out, &in);
    if (ZSTD_isError(left) != 0) return NotInCoding("zstd");
    if (decoded.size() + out.pos > bytes_max) return TooLong(bytes_max);
    decoded.append(chunk.data(), out.pos);
    if (left == 0 && in.pos == in.size) return decoded;
    if (out.pos == 0 && in.pos == read_before) return NotInCoding("zstd");
  }
}

}  // namespace

absl::StatusOr<std::string> DecodeContent(absl::string_view coding, std::string body,
                                          size_t bytes_max) {
  if (body.empty() || coding.empty() || absl::EqualsIgnoreCase(coding, "identity")) return body;
  if (absl::EqualsIgnoreCase(coding, "gzip") || absl::EqualsIgnoreCase(coding, "x-gzip")) {
    return Inflate("gzip", MAX_WBITS + 16, body, bytes_max);
  }
  if (absl::EqualsIgnoreCase(coding, "deflate")) {
    return Inflate("deflate", HasZlibHeader(body) ? MAX_WBITS : -MAX_WBITS, body, bytes_max);
  }
  if (absl::EqualsIgnoreCase(coding, "zstd")) return DecodeZstd(body, bytes_max);
  return absl::UnimplementedError(absl::StrCat("Content-Encoding ", coding,
                                               " is not supported: send the body as it is, or in ",
                                               kContentCodings));
}

}  // namespace strata
