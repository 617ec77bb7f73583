// TXT records as DNS-SD carries them, strings with a length before each: a record that is accepted
// is plain text, and written and parsed again it is the same.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "transport/base/node_id.h"
#include "transport/discovery/mdns_record.h"

namespace strata {
namespace {

void Check(bool right) {
  if (!right) std::abort();
}

absl::StatusOr<DiscoveryRecord> Read(const std::vector<std::string>& strings) {
  return ParseMdnsText(std::vector<absl::string_view>(strings.begin(), strings.end()));
}

}  // namespace
}  // namespace strata

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace strata;  // NOLINT(google-build-using-namespace): one function
  absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  std::vector<absl::string_view> strings;
  while (!bytes.empty()) {
    const size_t n = static_cast<unsigned char>(bytes[0]);
    strings.push_back(bytes.substr(1, n));
    bytes.remove_prefix(1 + strings.back().size());
  }
  const absl::StatusOr<DiscoveryRecord> record = ParseMdnsText(strings);
  if (!record.ok()) {
    Check(absl::IsInvalidArgument(record.status()));
    return 0;
  }
  Check(IsNodeId(record->node_id));
  Check(IsPrintable(record->name) && IsPrintable(record->cluster) && IsPrintable(record->key_id));
  Check(MdnsInstanceName(*record).size() <= 63);
  const std::vector<std::string> written = MdnsText(*record, 1);
  for (const std::string& text : written) Check(text.size() <= 255);
  const absl::StatusOr<DiscoveryRecord> again = Read(written);
  Check(again.ok() && again->node_id == record->node_id && again->protocol == record->protocol);
  return 0;
}
