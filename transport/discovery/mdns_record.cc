#include "transport/discovery/mdns_record.h"

#include <map>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "transport/base/node_id.h"
#include "transport/base/printable_text.h"
#include "transport/base/short_id.h"

namespace strata {
namespace {

constexpr size_t kLabelBytesMax = 63;
constexpr size_t kStringBytesMax = 255;

// The start of `text` in at most `bytes_max`, never half a character.
std::string Head(absl::string_view text, size_t bytes_max) {
  if (text.size() <= bytes_max) return std::string(text);
  while (bytes_max > 0 && (static_cast<unsigned char>(text[bytes_max]) & 0xC0) == 0x80) --bytes_max;
  return std::string(text.substr(0, bytes_max));
}

}  // namespace

std::string MdnsInstanceName(const DiscoveryRecord& self) {
  return absl::StrCat(Head(self.name, kLabelBytesMax - kShortNodeIdDigits - 1), " ",
                      self.node_id.substr(0, kShortNodeIdDigits));
}

std::vector<std::string> MdnsText(const DiscoveryRecord& self, uint16_t port) {
  std::vector<std::string> strings = {"txtvers=1",
                                      absl::StrCat("id=", self.node_id),
                                      absl::StrCat("cluster=", self.cluster),
                                      absl::StrCat("version=", self.protocol),
                                      absl::StrCat("port=", port),
                                      absl::StrCat("name=", self.name)};
  if (self.nonce != 0) strings.push_back(absl::StrCat("start=", self.nonce));
  if (self.waits) {
    strings.push_back("waits=1");
  } else if (!self.key_id.empty()) {
    strings.push_back(absl::StrCat("key=", self.key_id));
  }
  for (std::string& text : strings) text = Head(text, kStringBytesMax);
  return strings;
}

absl::StatusOr<DiscoveryRecord> ParseMdnsText(const std::vector<absl::string_view>& strings) {
  std::map<absl::string_view, absl::string_view> values;
  for (absl::string_view text : strings) {
    const size_t equals = text.find('=');
    if (equals != text.npos) values.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  DiscoveryRecord record;
  record.node_id = std::string(values["id"]);
  if (!IsNodeId(record.node_id)) return absl::InvalidArgumentError("TXT has no node id");
  if (!absl::SimpleAtoi(values["version"], &record.protocol)) {
    return absl::InvalidArgumentError("TXT has no protocol version");
  }
  if (!absl::SimpleAtoi(values["start"], &record.nonce)) record.nonce = 0;
  record.cluster = PrintableText::From(values["cluster"]);
  record.name = PrintableText::From(values["name"]);
  record.key_id = PrintableText::From(values["key"]);
  record.waits = values["waits"] == "1";
  return record;
}

}  // namespace strata
