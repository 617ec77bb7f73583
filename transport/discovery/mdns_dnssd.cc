// mDNS/DNS-SD by the system's own daemon, through dns_sd.h: mDNSResponder on macOS, where no other
// program may answer on port 5353. Loop thread.
//
// Not tried on a Mac yet, only with Avahi's implementation of dns_sd.h (cmake -DSTRATA_MDNS=dnssd):
// two of these by one avahi-daemon and libavahi-core on another machine saw each other come and go.
// So it uses only calls that both have: DNSServiceQueryRecord for addresses, since Avahi lacks
// DNSServiceGetAddrInfo, and a connection to the daemon for each operation, since Avahi lacks
// shared ones. Descriptors are few on macOS, so addresses are queried for some seconds only:
// heartbeats carry later ones. A restart of the daemon was not tried: Avahi's library crashes.
#include <arpa/inet.h>
#include <dns_sd.h>
#include <netinet/in.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "transport/discovery/discovery.h"
#include "transport/discovery/mdns_record.h"

namespace strata {
namespace {

constexpr char kDomain[] = "local";
// Each needs a descriptor; more instances are ignored.
constexpr size_t kSightingsMax = 128;
constexpr uint64_t kAddressesMs = 3'000;  // for which addresses of an instance are queried
constexpr uint64_t kRestartMs = 5'000;    // after the daemon has gone
constexpr uint16_t kTypeA = 1, kTypeAaaa = 28, kClassIn = 1;  // RFC 1035, RFC 3596

absl::Status Error(absl::string_view what, DNSServiceErrorType error) {
  return absl::UnavailableError(
      absl::StrCat("mDNS: ", what, ": the system's daemon says error ", error,
                   error == kDNSServiceErr_Unknown ? "; is it running?" : ""));
}

// TXT as it is on the wire: each string after its length (RFC 6763, section 6.1).
std::string JoinText(const std::vector<std::string>& strings) {
  std::string bytes;
  for (const std::string& text : strings) {
    bytes += static_cast<char>(text.size());
    bytes += text;
  }
  return bytes;
}

// The rest after a length that is too great is dropped.
std::vector<absl::string_view> SplitText(absl::string_view bytes) {
  std::vector<absl::string_view> strings;
  while (!bytes.empty()) {
    const size_t size = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    if (size > bytes.size()) break;
    strings.push_back(bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
  return strings;
}

// An operation of the daemon, which ends when this is destroyed.
class Operation {
 public:
  Operation(EventLoop* loop, DNSServiceRef ref,
            absl::AnyInvocable<void(DNSServiceErrorType)> broken)
      : ref_(ref), broken_(std::move(broken)) {
    watch_ = loop->WatchFd(DNSServiceRefSockFD(ref_), {.readable = true}, [this](auto) {
      // Calls back; nobody destroys an operation from its own callback.
      const DNSServiceErrorType error = DNSServiceProcessResult(ref_);
      if (error != kDNSServiceErr_NoError) broken_(error);
    });
  }
  Operation(const Operation&) = delete;
  ~Operation() {
    watch_.reset();
    DNSServiceRefDeallocate(ref_);
  }

 private:
  const DNSServiceRef ref_;
  absl::AnyInvocable<void(DNSServiceErrorType)> broken_;
  std::unique_ptr<EventLoop::Handle> watch_;
};

class DnssdDiscovery final : public Discovery {
 public:
  DnssdDiscovery(EventLoop* loop, Options options, Listener* listener)
      : loop_(loop), self_(std::move(options.self)), port_(options.port), listener_(listener) {}

  absl::Status Start();
  // The daemon announces this machine's addresses by itself.
  void Announce(const std::vector<InterfaceAddress>&) override {}

 private:
  // An instance is seen on each interface by itself.
  using SightingKey = std::pair<uint32_t, std::string>;
  struct Sighting {
    DnssdDiscovery* discovery;
    SightingKey key;
    int times = 1;  // Avahi reports each IP version
    std::string host;
    uint16_t port = 0;
    DiscoveryRecord record;  // no id: not resolved yet
    std::unique_ptr<Operation> resolve, ipv4, ipv6;
    std::unique_ptr<EventLoop::Handle> enough;
  };

  std::unique_ptr<Operation> Watch(DNSServiceRef ref);
  void Broken(DNSServiceErrorType error);
  void OnBrowse(bool added, SightingKey key);
  void Resolve(Sighting* sighting);
  void OnResolved(Sighting* sighting, const char* host, uint16_t port, absl::string_view text);
  void LookForAddresses(Sighting* sighting);
  void OnAddress(Sighting* sighting, bool added, const std::string& ip);
  // Merges all sightings of a node and reports the result to the listener.
  void Report(const std::string& node_id);

  // Constant.
  EventLoop* const loop_;
  const DiscoveryRecord self_;
  const uint16_t port_;
  Listener* const listener_;

  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // shared with nobody
  std::unique_ptr<Operation> registration_, browse_;
  std::map<SightingKey, std::unique_ptr<Sighting>> sightings_;
  std::set<std::string> found_;  // ids for which the last call was OnFound(), not OnLost()
  std::unique_ptr<EventLoop::Handle> restart_;
};

std::unique_ptr<Operation> DnssdDiscovery::Watch(DNSServiceRef ref) {
  return std::make_unique<Operation>(loop_, ref, [this](DNSServiceErrorType error) {
    // Posted: Broken() destroys the operation whose callback this is.
    loop_->Post([this, error, alive = std::weak_ptr(alive_)] {
      if (!alive.expired()) Broken(error);
    });
  });
}

absl::Status DnssdDiscovery::Start() {
  DNSServiceRef ref = nullptr;
  DNSServiceErrorType error = DNSServiceBrowse(
      &ref, /*flags=*/0, /*interfaceIndex=*/0, kMdnsServiceType, kDomain,
      [](DNSServiceRef, DNSServiceFlags flags, uint32_t interface, DNSServiceErrorType failed,
         const char* name, const char*, const char*, void* self) {
        if (failed != kDNSServiceErr_NoError || name == nullptr) return;
        static_cast<DnssdDiscovery*>(self)->OnBrowse((flags & kDNSServiceFlagsAdd) != 0,
                                                     {interface, name});
      },
      this);
  if (error != kDNSServiceErr_NoError) return Error("cannot look for others", error);
  browse_ = Watch(ref);
  if (port_ == 0) return absl::OkStatus();
  const std::string text = JoinText(MdnsText(self_, port_));
  error = DNSServiceRegister(
      &ref, /*flags=*/0, /*interfaceIndex=*/0, MdnsInstanceName(self_).c_str(), kMdnsServiceType,
      kDomain, /*host=*/nullptr, htons(port_), static_cast<uint16_t>(text.size()), text.data(),
      [](DNSServiceRef, DNSServiceFlags, DNSServiceErrorType failed, const char*, const char*,
         const char*, void*) {
        if (failed != kDNSServiceErr_NoError) LOG(ERROR) << Error("cannot announce", failed);
      },
      this);
  if (error != kDNSServiceErr_NoError) {
    browse_.reset();
    return Error("cannot announce", error);
  }
  registration_ = Watch(ref);
  return absl::OkStatus();
}

// Most likely the daemon was restarted and has lost all state of this program.
void DnssdDiscovery::Broken(DNSServiceErrorType error) {
  if (browse_ == nullptr) return;  // one of several that broke together
  LOG(WARNING) << Error("the connection was lost; trying again soon", error).message();
  registration_.reset();
  browse_.reset();
  sightings_.clear();
  for (const std::string& id : std::exchange(found_, {})) listener_->OnLost(id);
  restart_ = loop_->StartTimer({.delay_ms = kRestartMs, .repeat_ms = kRestartMs}, [this] {
    if (browse_ != nullptr || !Start().ok()) return;
    loop_->Post([this, alive = std::weak_ptr(alive_)] {
      if (!alive.expired()) restart_.reset();
    });
  });
}

void DnssdDiscovery::OnBrowse(bool added, SightingKey key) {
  const auto known = sightings_.find(key);
  if (added && known != sightings_.end()) {
    ++known->second->times;
  } else if (added && sightings_.size() < kSightingsMax) {
    auto sighting = std::make_unique<Sighting>(Sighting{.discovery = this, .key = key});
    Resolve(sighting.get());
    sightings_.emplace(std::move(key), std::move(sighting));
  } else if (!added && known != sightings_.end() && --known->second->times == 0) {
    const std::string id = known->second->record.node_id;
    sightings_.erase(known);
    Report(id);
  }
}

// The operation keeps running after its first result, and reports changes.
void DnssdDiscovery::Resolve(Sighting* sighting) {
  DNSServiceRef ref = nullptr;
  const auto& [interface, name] = sighting->key;
  const DNSServiceErrorType error = DNSServiceResolve(
      &ref, /*flags=*/0, interface, name.c_str(), kMdnsServiceType, kDomain,
      [](DNSServiceRef, DNSServiceFlags, uint32_t, DNSServiceErrorType failed, const char*,
         const char* host, uint16_t port, uint16_t text_bytes, const unsigned char* text,
         void* userdata) {
        if (failed != kDNSServiceErr_NoError || host == nullptr) return;
        auto* found = static_cast<Sighting*>(userdata);
        found->discovery->OnResolved(
            found, host, ntohs(port),
            absl::string_view(reinterpret_cast<const char*>(text), text_bytes));
      },
      sighting);
  if (error != kDNSServiceErr_NoError) {
    LOG(WARNING) << Error("cannot resolve", error).message();
    return;
  }
  sighting->resolve = Watch(ref);
}

void DnssdDiscovery::OnResolved(Sighting* sighting, const char* host, uint16_t port,
                                absl::string_view text) {
  absl::StatusOr<DiscoveryRecord> record = ParseMdnsText(SplitText(text));
  if (!record.ok()) {
    LOG(INFO) << "mDNS: " << sighting->key.second << ": " << record.status().message();
    return;
  }
  const std::string id_before = sighting->record.node_id;
  const bool same_place = sighting->host == host && sighting->port == port;
  if (same_place) record->addresses = std::move(sighting->record.addresses);
  sighting->record = *std::move(record);
  sighting->host = host;
  sighting->port = port;
  if (!same_place) LookForAddresses(sighting);
  if (id_before != sighting->record.node_id) Report(id_before);
  Report(sighting->record.node_id);
}

void DnssdDiscovery::LookForAddresses(Sighting* sighting) {
  const auto look = [&](uint16_t type) -> std::unique_ptr<Operation> {
    DNSServiceRef ref = nullptr;
    const DNSServiceErrorType error = DNSServiceQueryRecord(
        &ref, /*flags=*/0, sighting->key.first, sighting->host.c_str(), type, kClassIn,
        [](DNSServiceRef, DNSServiceFlags flags, uint32_t, DNSServiceErrorType failed, const char*,
           uint16_t answered, uint16_t, uint16_t bytes, const void* data, uint32_t,
           void* userdata) {
          char ip[INET6_ADDRSTRLEN];
          const bool is_ipv6 = answered == kTypeAaaa;
          if (failed != kDNSServiceErr_NoError || (!is_ipv6 && answered != kTypeA) ||
              bytes != (is_ipv6 ? sizeof(in6_addr) : sizeof(in_addr)) ||
              inet_ntop(is_ipv6 ? AF_INET6 : AF_INET, data, ip, sizeof ip) == nullptr) {
            return;
          }
          auto* found = static_cast<Sighting*>(userdata);
          found->discovery->OnAddress(found, (flags & kDNSServiceFlagsAdd) != 0, ip);
        },
        sighting);
    if (error == kDNSServiceErr_NoError) return Watch(ref);
    LOG(WARNING) << Error("cannot look for addresses", error).message();
    return nullptr;
  };
  sighting->ipv4 = look(kTypeA);
  sighting->ipv6 = look(kTypeAaaa);
  sighting->enough = loop_->StartTimer({.delay_ms = kAddressesMs}, [sighting] {
    sighting->ipv4.reset();
    sighting->ipv6.reset();
  });
}

void DnssdDiscovery::OnAddress(Sighting* sighting, bool added, const std::string& ip) {
  const bool link_local = ip.starts_with("fe80:");
  const std::string address =
      JoinHostPort(link_local ? absl::StrCat(ip, "%", sighting->key.first) : ip, sighting->port);
  std::vector<std::string>& all = sighting->record.addresses;
  std::erase(all, address);
  if (added && all.size() < kNodeAddressesMax) all.push_back(address);
  Report(sighting->record.node_id);
}

void DnssdDiscovery::Report(const std::string& node_id) {
  if (node_id.empty()) return;
  DiscoveryRecord all;
  for (const auto& [key, sighting] : sightings_) {
    if (sighting->record.node_id != node_id || IsOwnRecord(sighting->record, self_)) continue;
    const std::vector<std::string> before = std::exchange(all.addresses, {});
    all = sighting->record;
    for (const std::string& address : before) {
      if (std::find(all.addresses.begin(), all.addresses.end(), address) == all.addresses.end()) {
        all.addresses.push_back(address);
      }
    }
  }
  // A node without an address cannot be reached, so it is not reported.
  if (!all.addresses.empty()) {
    if (all.addresses.size() > kNodeAddressesMax) all.addresses.resize(kNodeAddressesMax);
    found_.insert(node_id);
    listener_->OnFound(all);
  } else if (found_.erase(node_id) != 0) {
    listener_->OnLost(node_id);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Discovery>> Discovery::StartMdns(EventLoop* loop, Options options,
                                                                Listener* listener) {
  auto discovery = std::make_unique<DnssdDiscovery>(loop, std::move(options), listener);
  if (absl::Status status = discovery->Start(); !status.ok()) return status;
  return discovery;
}

}  // namespace strata
