#include "node/doctor/doctor_mdns.h"

#include <string>

#include "gtest/gtest.h"

namespace strata {
namespace {

// A PTR answer for the service (RFC 6762, section 6), instance "x".
std::string Answer() {
  std::string packet("\0\0\x84\0\0\0\0\x01\0\0\0\0", 12);
  packet += std::string("\x07_strata\x04_tcp\x05local\0", 20);
  packet += std::string("\0\x0c\0\x01\0\0\0\x78\0\x04\x01x\xc0\x0c", 14);
  return packet;
}

TEST(MdnsPacket, RecognizesItsOwnQueryByItsId) {
  EXPECT_EQ(ClassifyMdns(MdnsQuery(77), 77), MdnsPacket::kOwnQuery);
  EXPECT_EQ(ClassifyMdns(MdnsQuery(78), 77), MdnsPacket::kOther);
}

TEST(MdnsPacket, RecognizesAnswersThatAnnounceNodes) {
  EXPECT_EQ(ClassifyMdns(Answer(), 77), MdnsPacket::kAnnouncesNodes);
  std::string other = Answer();
  other.replace(other.find("_strata"), 7, "_prints");
  EXPECT_EQ(ClassifyMdns(other, 77), MdnsPacket::kOther);
}

TEST(MdnsPacket, HandlesAnyBytes) {
  const std::string packet = Answer();
  for (size_t n = 0; n <= packet.size(); ++n) ClassifyMdns(packet.substr(0, n), 77);
  EXPECT_EQ(ClassifyMdns("", 77), MdnsPacket::kOther);
  EXPECT_EQ(ClassifyMdns(std::string(11, '\xff'), 77), MdnsPacket::kOther);
}

}  // namespace
}  // namespace strata
