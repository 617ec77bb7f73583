#include "node/api/api_route.h"

#include "absl/random/random.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace strata {

void DialectRoutes::Add(const char* method, std::string path, Handler handle) {
  routes_.push_back({.method = method,
                     .path = std::move(path),
                     .error_form = error_form_,
                     .stream_form = stream_form_,
                     .handle = std::move(handle)});
}

void DialectRoutes::Generation(std::string path, Handler handle) {
  Post(std::move(path), std::move(handle));
  routes_.back().is_generation = true;
}

void DialectRoutes::GetWithHeader(std::string path, std::string header, Handler handle) {
  Get(std::move(path), std::move(handle));
  routes_.back().header = std::move(header);
}

std::string RestOfPath(absl::string_view path, absl::string_view prefix) {
  const absl::string_view text = absl::StripPrefix(path, prefix);
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    std::string byte;
    if (text[i] == '%' && i + 2 < text.size() &&
        absl::HexStringToBytes(text.substr(i + 1, 2), &byte)) {
      out += byte;
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string QueryField(absl::string_view query, absl::string_view name) {
  for (absl::string_view field : absl::StrSplit(query, '&')) {
    if (absl::ConsumePrefix(&field, name) && absl::ConsumePrefix(&field, "=")) {
      return RestOfPath(field, "");
    }
  }
  return "";
}

std::string NewAnswerId(absl::string_view prefix) {
  thread_local absl::BitGen random;
  return absl::StrFormat("%s%016x%08x", prefix, absl::Uniform<uint64_t>(random),
                         absl::Uniform<uint32_t>(random));
}

}  // namespace strata
