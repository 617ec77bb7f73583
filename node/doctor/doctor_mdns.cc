#ifdef __APPLE__
#define __APPLE_USE_RFC_3542  // IPV6_RECVPKTINFO
#endif
#include "node/doctor/doctor_mdns.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "transport/base/steady_time.h"

namespace strata {
namespace {

constexpr uint16_t kPort = 5353;
constexpr char kGroup4[] = "224.0.0.251";
constexpr char kGroup6[] = "ff02::fb";
constexpr int kHops = 255;  // RFC 6762, section 11
constexpr int kMdnsSliceMs = 50;
// Addresses that are counted on one interface.
constexpr size_t kHeardMax = 1024;
// The type of the service's names as labels (RFC 1035, section 3.1).
constexpr absl::string_view kLabels("\x07_strata\x04_tcp\x05local\0", 20);

// Sets both options, as other programs on this port do, or the system refuses to share it.
bool Share(int fd) {
  const int on = 1;
  bool shared = setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0;
#ifdef SO_REUSEPORT
  shared = setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) == 0 && shared;
#endif
  return shared;
}

// A socket on port 5353 of all interfaces, for one version of IP.
class MdnsSocket {
 public:
  explicit MdnsSocket(bool ipv6) : ipv6_(ipv6) {}
  ~MdnsSocket() {
    if (fd_ >= 0) close(fd_);
  }
  MdnsSocket(const MdnsSocket&) = delete;
  MdnsSocket& operator=(const MdnsSocket&) = delete;

  int fd() const { return fd_; }

  // Returns an errno, as Join() and Send() do; 0: success.
  int Open() {
    fd_ = socket(ipv6_ ? AF_INET6 : AF_INET, SOCK_DGRAM, 0);
    if (fd_ < 0) return errno;
    fcntl(fd_, F_SETFD, FD_CLOEXEC);
    fcntl(fd_, F_SETFL, O_NONBLOCK);
    if (!Share(fd_)) return errno;
    const int on = 1;
    if (ipv6_) {
      if (!Set(IPPROTO_IPV6, IPV6_V6ONLY, on) || !Set(IPPROTO_IPV6, IPV6_RECVPKTINFO, on) ||
          !Set(IPPROTO_IPV6, IPV6_MULTICAST_HOPS, kHops) ||
          !Set(IPPROTO_IPV6, IPV6_MULTICAST_LOOP, on)) {
        return errno;
      }
    } else if (!Set(IPPROTO_IP, IP_PKTINFO, on) || !Set(IPPROTO_IP, IP_MULTICAST_TTL, kHops) ||
               !Set(IPPROTO_IP, IP_MULTICAST_LOOP, on)) {
      return errno;
    }
    sockaddr_storage any = {};
    const socklen_t size = Address(nullptr, &any);
    return bind(fd_, reinterpret_cast<sockaddr*>(&any), size) == 0 ? 0 : errno;
  }

  int Join(uint32_t interface) {
    int done = 0;
    if (ipv6_) {
      ipv6_mreq request = {};
      inet_pton(AF_INET6, kGroup6, &request.ipv6mr_multiaddr);
      request.ipv6mr_interface = interface;
      done = setsockopt(fd_, IPPROTO_IPV6, IPV6_JOIN_GROUP, &request, sizeof request);
    } else {
      const ip_mreqn request = Request4(interface);
      done = setsockopt(fd_, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof request);
    }
    return done == 0 || errno == EADDRINUSE ? 0 : errno;
  }

  int Send(uint32_t interface, const std::string& packet) {
    if (ipv6_) {
      if (!Set(IPPROTO_IPV6, IPV6_MULTICAST_IF, static_cast<int>(interface))) return errno;
    } else {
      const ip_mreqn request = Request4(interface);
      if (setsockopt(fd_, IPPROTO_IP, IP_MULTICAST_IF, &request, sizeof request) != 0) return errno;
    }
    sockaddr_storage to = {};
    const socklen_t size = Address(ipv6_ ? kGroup6 : kGroup4, &to);
    const ssize_t n =
        sendto(fd_, packet.data(), packet.size(), 0, reinterpret_cast<sockaddr*>(&to), size);
    return n >= 0 ? 0 : errno;
  }

  struct Packet {
    std::string bytes;
    std::string from;
    uint32_t interface = 0;
  };
  // False: there is no packet.
  bool Receive(Packet* received) const {
    char bytes[9000];  // RFC 6762, section 17
    alignas(cmsghdr) char control[256];
    sockaddr_storage from = {};
    iovec part = {.iov_base = bytes, .iov_len = sizeof bytes};
    msghdr message = {};
    message.msg_name = &from;
    message.msg_namelen = sizeof from;
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t n = recvmsg(fd_, &message, 0);
    if (n < 0) return false;
    received->bytes.assign(bytes, static_cast<size_t>(n));
    char text[INET6_ADDRSTRLEN] = {};
    if (ipv6_) {
      inet_ntop(AF_INET6, &reinterpret_cast<sockaddr_in6*>(&from)->sin6_addr, text, sizeof text);
    } else {
      inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(&from)->sin_addr, text, sizeof text);
    }
    received->from = text;
    received->interface = 0;
    for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr;
         each = CMSG_NXTHDR(&message, each)) {
      if (ipv6_ && each->cmsg_level == IPPROTO_IPV6 && each->cmsg_type == IPV6_PKTINFO) {
        in6_pktinfo info;
        memcpy(&info, CMSG_DATA(each), sizeof info);
        received->interface = static_cast<uint32_t>(info.ipi6_ifindex);
      } else if (!ipv6_ && each->cmsg_level == IPPROTO_IP && each->cmsg_type == IP_PKTINFO) {
        in_pktinfo info;
        memcpy(&info, CMSG_DATA(each), sizeof info);
        received->interface = static_cast<uint32_t>(info.ipi_ifindex);
      }
    }
    return true;
  }

 private:
  bool Set(int level, int option, int value) const {
    return setsockopt(fd_, level, option, &value, sizeof value) == 0;
  }
  static ip_mreqn Request4(uint32_t interface) {
    ip_mreqn request = {};
    inet_pton(AF_INET, kGroup4, &request.imr_multiaddr);
    request.imr_ifindex = static_cast<int>(interface);
    return request;
  }
  // The address of a host at the port; null: any host.
  socklen_t Address(const char* host, sockaddr_storage* out) const {
    if (ipv6_) {
      auto* in6 = reinterpret_cast<sockaddr_in6*>(out);
      in6->sin6_family = AF_INET6;
      in6->sin6_port = htons(kPort);
      if (host != nullptr) inet_pton(AF_INET6, host, &in6->sin6_addr);
      return sizeof *in6;
    }
    auto* in = reinterpret_cast<sockaddr_in*>(out);
    in->sin_family = AF_INET;
    in->sin_port = htons(kPort);
    if (host != nullptr) inet_pton(AF_INET, host, &in->sin_addr);
    return sizeof *in;
  }

  const bool ipv6_;
  int fd_ = -1;
};

// The group's membership on one interface, for one version of IP.
struct GroupMembership {
  uint32_t interface;
  wire::MulticastFacts* facts;
  std::set<std::string> heard;
};

void SendQuery(MdnsSocket* socket, const std::string& query,
               std::vector<GroupMembership>* memberships) {
  for (GroupMembership& membership : *memberships) {
    if (!membership.facts->join_error().empty()) continue;
    const int error = socket->Send(membership.interface, query);
    membership.facts->set_send_error(error == 0 ? "" : strerror(error));
  }
}

void Listen(const MdnsSocket& socket, uint16_t id, const std::set<std::string>& own,
            std::vector<GroupMembership>* memberships) {
  MdnsSocket::Packet received;
  while (socket.Receive(&received)) {
    const auto membership = std::find_if(
        memberships->begin(), memberships->end(),
        [&](const GroupMembership& each) { return each.interface == received.interface; });
    if (membership == memberships->end()) continue;
    const MdnsPacket what = ClassifyMdns(received.bytes, id);
    const bool is_own = own.contains(received.from);
    if (what == MdnsPacket::kOwnQuery && is_own) membership->facts->set_heard_self(true);
    if (what == MdnsPacket::kAnnouncesNodes && !is_own && membership->heard.size() < kHeardMax) {
      membership->heard.insert(received.from);
      membership->facts->set_heard_nodes(static_cast<uint32_t>(membership->heard.size()));
    }
  }
}

}  // namespace

std::string MdnsQuery(uint16_t id) {
  // RFC 1035, section 4.1: one question, for PTR records of class IN. Answers go to everybody.
  std::string packet = {
      static_cast<char>(id >> 8), static_cast<char>(id), 0, 0, 0, 1, 0, 0, 0, 0, 0, 0};
  absl::StrAppend(&packet, kLabels);
  packet.append({0, 12, 0, 1});
  return packet;
}

MdnsPacket ClassifyMdns(absl::string_view packet, uint16_t own_id) {
  constexpr size_t kHeaderBytes = 12;
  if (packet.size() < kHeaderBytes) return MdnsPacket::kOther;
  const bool is_answer = (static_cast<unsigned char>(packet[2]) & 0x80) != 0;
  if (!is_answer) {
    return packet == MdnsQuery(own_id) ? MdnsPacket::kOwnQuery : MdnsPacket::kOther;
  }
  // The name is written out at least once; later ones may point to it.
  return absl::StrContains(packet, kLabels) ? MdnsPacket::kAnnouncesNodes : MdnsPacket::kOther;
}

void CheckMdns(const MdnsCheckOptions& options, wire::MachineFacts* machine) {
  std::random_device random;
  const auto id = static_cast<uint16_t>(random() | 1);  // queries of others have 0
  const std::string query = MdnsQuery(id);
  std::set<std::string> own;
  for (const wire::InterfaceFacts& interface : machine->interfaces()) {
    own.insert(interface.ips().begin(), interface.ips().end());
  }

  MdnsSocket socket4(false), socket6(true);
  std::vector<GroupMembership> memberships4, memberships6;
  for (wire::InterfaceFacts& interface : *machine->mutable_interfaces()) {
    const uint32_t index = if_nametoindex(interface.name().c_str());
    if (!interface.up() || !interface.multicast() || index == 0) continue;
    bool has4 = false, has6 = false;
    for (const std::string& ip : interface.ips()) {
      (absl::StrContains(ip, ':') ? has6 : has4) = true;
    }
    // The pointers stay valid: the next lines add at most two groups.
    interface.mutable_groups()->Reserve(2);
    if (has4) memberships4.push_back({index, interface.add_groups(), {}});
    if (has6) memberships6.push_back({index, interface.add_groups(), {}});
    if (has6) memberships6.back().facts->set_ipv6(true);
  }

  std::vector<std::pair<MdnsSocket*, std::vector<GroupMembership>*>> all = {
      {&socket4, &memberships4}, {&socket6, &memberships6}};
  std::erase_if(all, [&](const auto& each) {
    if (each.second->empty()) return true;
    const int error = each.first->Open();
    if (error == 0) return false;
#ifndef __APPLE__  // there the system's daemon owns the port, and is used instead
    machine->set_mdns_port_error(strerror(error));
#endif
    for (GroupMembership& membership : *each.second) membership.facts->set_not_tried(true);
    return true;
  });
  for (const auto& [socket, memberships] : all) {
    for (GroupMembership& membership : *memberships) {
      const int error = socket->Join(membership.interface);
      if (error != 0) membership.facts->set_join_error(strerror(error));
    }
    SendQuery(socket, query, memberships);
  }
  const SteadyTime begin = SteadyTime::Now();
  const absl::Duration length = absl::Milliseconds(options.listen_ms);
  bool queried_again = false;
  while (!all.empty() && SteadyTime::Now() < begin + length &&
         (options.cancelled == nullptr || !options.cancelled())) {
    if (!queried_again && SteadyTime::Now() > begin + length / 2) {
      queried_again = true;
      for (const auto& [socket, memberships] : all) SendQuery(socket, query, memberships);
    }
    std::vector<pollfd> fds;
    for (const auto& each : all) {
      fds.push_back({.fd = each.first->fd(), .events = POLLIN, .revents = 0});
    }
    poll(fds.data(), static_cast<nfds_t>(fds.size()), kMdnsSliceMs);
    for (const auto& [socket, memberships] : all) Listen(*socket, id, own, memberships);
  }
}

}  // namespace strata
