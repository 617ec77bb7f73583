// mDNS/DNS-SD by libavahi-core inside this process, on the loop: no daemon, no D-Bus. Loop thread.
//
// Choices that this library makes necessary:
// - Several nodes may run on one machine, each with this library on port 5353. So each takes a host
//   name of its own and no reverse records, which would collide on the machine's address.
// - All names hold the node's id, 128 random bits, so they are announced without probing (RFC 6762,
//   section 8.1, has probes for names that others might have), which saves a second.
// - A group's records are announced once. Withdrawing and at once announcing the same record may
//   lose both, so each address has a group of its own and the service's records never change.
#include <net/if.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "avahi-common/address.h"
#include "avahi-common/domain.h"
#include "avahi-common/error.h"
#include "avahi-common/malloc.h"
#include "avahi-common/strlst.h"
#include "avahi-core/core.h"
#include "avahi-core/log.h"
#include "avahi-core/lookup.h"
#include "avahi-core/publish.h"
#include "transport/discovery/discovery.h"
#include "transport/discovery/mdns_poll.h"
#include "transport/discovery/mdns_record.h"

namespace strata {
namespace {

constexpr char kDomain[] = "local";
constexpr AvahiPublishFlags kShared = static_cast<AvahiPublishFlags>(0);
constexpr AvahiPublishFlags kOurs =
    static_cast<AvahiPublishFlags>(AVAHI_PUBLISH_UNIQUE | AVAHI_PUBLISH_NO_PROBE);
constexpr AvahiPublishFlags kOneOfOurs =
    static_cast<AvahiPublishFlags>(kOurs | AVAHI_PUBLISH_ALLOW_MULTIPLE);
constexpr AvahiLookupFlags kNoLookupFlags = static_cast<AvahiLookupFlags>(0);

void LogAvahi(AvahiLogLevel level, const char* text) {
  if (level <= AVAHI_LOG_ERROR) {
    LOG(ERROR) << "mDNS: " << text;
  } else {
    LOG(INFO) << "mDNS: " << text;  // its warnings are about other stacks and interfaces
  }
}

struct StringListFree {
  void operator()(AvahiStringList* list) const { avahi_string_list_free(list); }
};
using StringList = std::unique_ptr<AvahiStringList, StringListFree>;

struct RecordUnref {
  void operator()(AvahiRecord* record) const { avahi_record_unref(record); }
};
using Record = std::unique_ptr<AvahiRecord, RecordUnref>;

Record NewRecord(const std::string& name, uint16_t type, uint32_t ttl) {
  return Record(avahi_record_new_full(name.c_str(), AVAHI_DNS_CLASS_IN, type, ttl));
}

class AvahiDiscovery final : public Discovery {
 public:
  AvahiDiscovery(EventLoop* loop, Options options, Listener* listener)
      : loop_(loop),
        self_(std::move(options.self)),
        port_(options.port),
        listener_(listener),
        host_label_(absl::StrCat("strata-", self_.node_id)),
        host_(absl::StrCat(host_label_, ".", kDomain)),
        poll_(loop) {}

  ~AvahiDiscovery() override {
    if (server_ != nullptr) avahi_server_free(server_);  // with all that belongs to it
  }

  absl::Status Start();
  void Announce(const std::vector<InterfaceAddress>& addresses) override;

 private:
  // An instance is seen on each interface and IP version by itself.
  using SightingKey = std::tuple<AvahiIfIndex, AvahiProtocol, std::string>;
  struct Sighting {
    AvahiDiscovery* discovery;
    SightingKey key;
    AvahiSServiceResolver* resolver = nullptr;
    DiscoveryRecord record;  // with one address; no id: not resolved yet
  };

  absl::Status Error(absl::string_view what) const {
    return absl::UnavailableError(
        absl::StrCat("mDNS: ", what, ": ", avahi_strerror(avahi_server_errno(server_))));
  }
  absl::Status Add(AvahiSEntryGroup* group, AvahiIfIndex interface, AvahiPublishFlags flags,
                   Record record) {
    if (avahi_server_add(server_, group, interface, AVAHI_PROTO_UNSPEC, flags, record.get()) != 0) {
      return Error("cannot announce");
    }
    return absl::OkStatus();
  }
  AvahiSEntryGroup* NewGroup() {
    return avahi_s_entry_group_new(
        server_, [](AvahiServer*, AvahiSEntryGroup*, AvahiEntryGroupState, void*) {}, nullptr);
  }
  absl::Status AnnounceService();
  absl::Status AnnounceAddress(AvahiSEntryGroup* group, const InterfaceAddress& address);

  void OnBrowse(AvahiBrowserEvent event, SightingKey key);
  void Resolve(Sighting* sighting);
  void OnResolved(Sighting* sighting, AvahiResolverEvent event, const AvahiAddress* address,
                  uint16_t port, AvahiStringList* text);
  // Merges all sightings of a node and reports the result to the listener.
  void Report(const std::string& node_id);

  // Constant.
  EventLoop* const loop_;
  const DiscoveryRecord self_;
  const uint16_t port_;
  Listener* const listener_;
  const std::string host_label_;
  const std::string host_;
  MdnsPoll poll_;

  AvahiServer* server_ = nullptr;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // shared with nobody
  std::map<InterfaceAddress, AvahiSEntryGroup*> announced_;
  std::map<SightingKey, std::unique_ptr<Sighting>> sightings_;
  std::set<std::string> found_;  // ids for which the last call was OnFound(), not OnLost()
};

absl::Status AvahiDiscovery::Start() {
  avahi_set_log_function(&LogAvahi);
  AvahiServerConfig config;
  avahi_server_config_init(&config);
  avahi_free(config.host_name);
  config.host_name = avahi_strdup(host_label_.c_str());
  avahi_free(config.domain_name);
  config.domain_name = avahi_strdup(kDomain);
  config.publish_hinfo = 0;
  config.publish_addresses = 0;
  config.publish_workstation = 0;
  config.publish_domain = 0;
  config.enable_wide_area = 0;
  config.use_iff_running = 1;  // a cable that comes back is a new interface, looked at afresh
  int error = 0;
  server_ = avahi_server_new(
      poll_.api(), &config,
      [](AvahiServer* server, AvahiServerState state, void*) {
        if (state == AVAHI_SERVER_FAILURE) {
          LOG(ERROR) << "mDNS: " << avahi_strerror(avahi_server_errno(server));
        }
      },
      nullptr, &error);
  avahi_server_config_free(&config);
  if (server_ == nullptr) {
    return absl::UnavailableError(absl::StrCat("mDNS: ", avahi_strerror(error)));
  }
  AvahiSServiceBrowser* browser = avahi_s_service_browser_new(
      server_, AVAHI_IF_UNSPEC, AVAHI_PROTO_UNSPEC, kMdnsServiceType, kDomain, kNoLookupFlags,
      [](AvahiSServiceBrowser*, AvahiIfIndex interface, AvahiProtocol protocol,
         AvahiBrowserEvent event, const char* name, const char*, const char*,
         AvahiLookupResultFlags, void* self) {
        static_cast<AvahiDiscovery*>(self)->OnBrowse(
            event, {interface, protocol, name == nullptr ? "" : name});
      },
      this);
  if (browser == nullptr) return Error("cannot browse");
  return port_ == 0 ? absl::OkStatus() : AnnounceService();
}

absl::Status AvahiDiscovery::AnnounceService() {
  char instance[AVAHI_DOMAIN_NAME_MAX];
  if (avahi_service_name_join(instance, sizeof instance, MdnsInstanceName(self_).c_str(),
                              kMdnsServiceType, kDomain) != 0) {
    return absl::InvalidArgumentError("mDNS: the node's name cannot be announced");
  }
  const std::string type = absl::StrCat(kMdnsServiceType, ".", kDomain);

  Record types = NewRecord(absl::StrCat("_services._dns-sd._udp.", kDomain), AVAHI_DNS_TYPE_PTR,
                           AVAHI_DEFAULT_TTL);
  types->data.ptr.name = avahi_strdup(type.c_str());
  Record pointer = NewRecord(type, AVAHI_DNS_TYPE_PTR, AVAHI_DEFAULT_TTL);
  pointer->data.ptr.name = avahi_strdup(instance);
  Record service = NewRecord(instance, AVAHI_DNS_TYPE_SRV, AVAHI_DEFAULT_TTL_HOST_NAME);
  service->data.srv.port = port_;
  service->data.srv.name = avahi_strdup(host_.c_str());
  Record text = NewRecord(instance, AVAHI_DNS_TYPE_TXT, AVAHI_DEFAULT_TTL);
  for (const std::string& each : MdnsText(self_, port_)) {
    text->data.txt.string_list = avahi_string_list_add(text->data.txt.string_list, each.c_str());
  }
  text->data.txt.string_list = avahi_string_list_reverse(text->data.txt.string_list);

  AvahiSEntryGroup* group = NewGroup();
  if (group == nullptr) return Error("cannot announce");
  absl::Status status = Add(group, AVAHI_IF_UNSPEC, kShared, std::move(types));
  status.Update(Add(group, AVAHI_IF_UNSPEC, kShared, std::move(pointer)));
  status.Update(Add(group, AVAHI_IF_UNSPEC, kOurs, std::move(service)));
  status.Update(Add(group, AVAHI_IF_UNSPEC, kOurs, std::move(text)));
  if (status.ok() && avahi_s_entry_group_commit(group) != 0) status = Error("cannot announce");
  return status;
}

void AvahiDiscovery::Announce(const std::vector<InterfaceAddress>& addresses) {
  if (port_ == 0) return;
  const std::set<InterfaceAddress> wanted(addresses.begin(), addresses.end());
  for (auto it = announced_.begin(); it != announced_.end();) {
    if (wanted.contains(it->first)) {
      ++it;
    } else {
      avahi_s_entry_group_free(it->second);
      it = announced_.erase(it);
    }
  }
  for (const InterfaceAddress& address : wanted) {
    if (announced_.contains(address)) continue;
    AvahiSEntryGroup* group = NewGroup();
    if (group == nullptr) continue;
    if (absl::Status status = AnnounceAddress(group, address); !status.ok()) {
      LOG(WARNING) << address.ip << " on " << address.name << ": " << status.message();
      avahi_s_entry_group_free(group);
      continue;
    }
    announced_.emplace(address, group);
  }
}

absl::Status AvahiDiscovery::AnnounceAddress(AvahiSEntryGroup* group,
                                             const InterfaceAddress& address) {
  AvahiAddress parsed;
  if (avahi_address_parse(address.ip.c_str(),
                          address.is_ipv6 ? AVAHI_PROTO_INET6 : AVAHI_PROTO_INET,
                          &parsed) == nullptr) {
    return absl::InvalidArgumentError("not an address");
  }
  Record record = NewRecord(host_, address.is_ipv6 ? AVAHI_DNS_TYPE_AAAA : AVAHI_DNS_TYPE_A,
                            AVAHI_DEFAULT_TTL_HOST_NAME);
  if (address.is_ipv6) {
    record->data.aaaa.address = parsed.data.ipv6;
  } else {
    record->data.a.address = parsed.data.ipv4;
  }
  absl::Status status =
      Add(group, static_cast<AvahiIfIndex>(address.interface), kOneOfOurs, std::move(record));
  if (status.ok() && avahi_s_entry_group_commit(group) != 0) status = Error("cannot announce");
  return status;
}

void AvahiDiscovery::OnBrowse(AvahiBrowserEvent event, SightingKey key) {
  if (event == AVAHI_BROWSER_NEW) {
    if (sightings_.size() >= kRecordsMax) return;
    auto [it, is_new] = sightings_.emplace(key, nullptr);
    if (!is_new) return;
    it->second = std::make_unique<Sighting>(Sighting{.discovery = this, .key = std::move(key)});
    Resolve(it->second.get());
  } else if (event == AVAHI_BROWSER_REMOVE) {
    const auto it = sightings_.find(key);
    if (it == sightings_.end()) return;
    if (it->second->resolver != nullptr) avahi_s_service_resolver_free(it->second->resolver);
    const std::string id = it->second->record.node_id;
    sightings_.erase(it);
    Report(id);
  } else if (event == AVAHI_BROWSER_FAILURE) {
    LOG(ERROR) << Error("browsing ended").message();
  }
}

// A resolver keeps running after its first result, and reports changes.
void AvahiDiscovery::Resolve(Sighting* sighting) {
  const auto& [interface, protocol, name] = sighting->key;
  if (sighting->resolver != nullptr) avahi_s_service_resolver_free(sighting->resolver);
  sighting->resolver = avahi_s_service_resolver_new(
      server_, interface, protocol, name.c_str(), kMdnsServiceType, kDomain, protocol,
      kNoLookupFlags,
      [](AvahiSServiceResolver*, AvahiIfIndex, AvahiProtocol, AvahiResolverEvent resolved,
         const char*, const char*, const char*, const char*, const AvahiAddress* address,
         uint16_t port, AvahiStringList* text, AvahiLookupResultFlags, void* userdata) {
        auto* found = static_cast<Sighting*>(userdata);
        found->discovery->OnResolved(found, resolved, address, port, text);
      },
      sighting);
  if (sighting->resolver == nullptr) LOG(WARNING) << Error("cannot resolve").message();
}

void AvahiDiscovery::OnResolved(Sighting* sighting, AvahiResolverEvent event,
                                const AvahiAddress* address, uint16_t port, AvahiStringList* text) {
  const std::string id_before = sighting->record.node_id;
  sighting->record = DiscoveryRecord();
  if (event == AVAHI_RESOLVER_FOUND && address != nullptr) {
    std::vector<absl::string_view> strings;
    for (AvahiStringList* each = text; each != nullptr; each = avahi_string_list_get_next(each)) {
      strings.emplace_back(reinterpret_cast<const char*>(avahi_string_list_get_text(each)),
                           avahi_string_list_get_size(each));
    }
    if (absl::StatusOr<DiscoveryRecord> record = ParseMdnsText(strings); record.ok()) {
      char ip[AVAHI_ADDRESS_STR_MAX];
      avahi_address_snprint(ip, sizeof ip, address);
      std::string host = ip;
      if (host.starts_with("fe80:")) absl::StrAppend(&host, "%", std::get<0>(sighting->key));
      record->addresses = {JoinHostPort(host, port)};
      sighting->record = *std::move(record);
    } else {
      LOG(INFO) << "mDNS: " << std::get<2>(sighting->key) << ": " << record.status().message();
    }
  } else if (event == AVAHI_RESOLVER_FAILURE) {
    // No response for some seconds, though the browser still has the instance: retry, but not from
    // inside the resolver's own callback, since Resolve() frees it.
    loop_->Post([this, alive = std::weak_ptr(alive_), key = sighting->key] {
      if (alive.expired()) return;
      const auto it = sightings_.find(key);
      if (it != sightings_.end() && it->second->record.node_id.empty()) Resolve(it->second.get());
    });
  }
  if (id_before != sighting->record.node_id) Report(id_before);
  Report(sighting->record.node_id);
}

void AvahiDiscovery::Report(const std::string& node_id) {
  if (node_id.empty()) return;
  DiscoveryRecord all;
  for (const auto& [key, sighting] : sightings_) {
    if (sighting->record.node_id != node_id || IsOwnRecord(sighting->record, self_)) continue;
    const std::string& address = sighting->record.addresses.front();
    if (all.node_id.empty()) {
      all = sighting->record;
    } else if (std::find(all.addresses.begin(), all.addresses.end(), address) ==
                   all.addresses.end() &&
               all.addresses.size() < kNodeAddressesMax) {
      all.addresses.push_back(address);
    }
  }
  if (!all.node_id.empty()) {
    found_.insert(node_id);
    listener_->OnFound(all);
  } else if (found_.erase(node_id) != 0) {
    listener_->OnLost(node_id);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Discovery>> Discovery::StartMdns(EventLoop* loop, Options options,
                                                                Listener* listener) {
  auto discovery = std::make_unique<AvahiDiscovery>(loop, std::move(options), listener);
  if (absl::Status status = discovery->Start(); !status.ok()) return status;
  return discovery;
}

}  // namespace strata
