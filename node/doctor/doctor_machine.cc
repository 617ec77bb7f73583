#include "node/doctor/doctor_machine.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "node/base/machine.h"
#include "node/doctor/doctor_mdns.h"
#include "node/workers/device_limits.h"
#include "transport/base/utf8.h"

namespace strata {
namespace {

wire::InterfaceFacts* InterfaceOf(const std::string& name, wire::MachineFacts* machine) {
  for (wire::InterfaceFacts& each : *machine->mutable_interfaces()) {
    if (each.name() == name) return &each;
  }
  wire::InterfaceFacts* added = machine->add_interfaces();
  added->set_name(name);
  return added;
}

void ReadInterfaces(wire::MachineFacts* machine) {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return;
  const absl::Cleanup free_all = [first] { freeifaddrs(first); };
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if ((each->ifa_flags & IFF_LOOPBACK) != 0) continue;
    wire::InterfaceFacts* interface = InterfaceOf(each->ifa_name, machine);
    constexpr unsigned kUp = IFF_UP | IFF_RUNNING;
    interface->set_up((each->ifa_flags & kUp) == kUp);
    interface->set_multicast((each->ifa_flags & IFF_MULTICAST) != 0);
    interface->set_point_to_point((each->ifa_flags & IFF_POINTOPOINT) != 0);
    std::error_code none;
    interface->set_wireless(std::filesystem::exists(
        absl::StrCat("/sys/class/net/", each->ifa_name, "/wireless"), none));
    if (each->ifa_addr == nullptr) continue;
    char text[INET6_ADDRSTRLEN] = {};
    if (each->ifa_addr->sa_family == AF_INET) {
      const auto* in = reinterpret_cast<const sockaddr_in*>(each->ifa_addr);
      inet_ntop(AF_INET, &in->sin_addr, text, sizeof text);
    } else if (each->ifa_addr->sa_family == AF_INET6) {
      const auto* in6 = reinterpret_cast<const sockaddr_in6*>(each->ifa_addr);
      inet_ntop(AF_INET6, &in6->sin6_addr, text, sizeof text);
    } else {
      continue;
    }
    interface->add_ips(text);
  }
}

// Writes a byte where the node would write, and removes it.
void CheckDataDir(const std::string& folder, wire::MachineFacts* machine) {
  machine->set_data_dir(folder);
  if (folder.empty()) return;
  // A node creates the folder when it starts: checks the nearest parent that exists.
  std::error_code error;
  std::filesystem::path there = folder;
  while (!std::filesystem::exists(there, error) && there.has_parent_path() &&
         there.parent_path() != there) {
    there = there.parent_path();
  }
  const std::filesystem::space_info space = std::filesystem::space(there, error);
  if (!error) machine->set_data_free_bytes(space.available);
  if (!std::filesystem::is_directory(there, error)) {
    machine->set_data_error(absl::StrCat(there.string(), " is no folder"));
    return;
  }
  std::string path = (there / ".strata-doctor-XXXXXX").string();
  const int fd = mkstemp(path.data());
  if (fd < 0) {
    machine->set_data_error(strerror(errno));
    return;
  }
  if (write(fd, "\n", 1) != 1) machine->set_data_error(strerror(errno));
  close(fd);
  unlink(path.c_str());
}

wire::MachineFacts::Firewall FindFirewall() {
#ifdef __APPLE__
  return wire::MachineFacts::MACOS;
#else
  std::ifstream ufw("/etc/ufw/ufw.conf");
  for (std::string line; std::getline(ufw, line);) {
    const std::string lower = absl::AsciiStrToLower(absl::StripAsciiWhitespace(line));
    if (lower == "enabled=yes") return wire::MachineFacts::UFW;
  }
  std::error_code none;
  if (std::filesystem::exists("/run/firewalld", none)) return wire::MachineFacts::FIREWALLD;
  return wire::MachineFacts::NONE_SEEN;
#endif
}

uint64_t PhysicalMemory() {
  const int64_t pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  return pages > 0 && page_bytes > 0
             ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_bytes)
             : 0;
}

// The first word of a file; empty: there is no such file.
std::string WordIn(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

// The maker by its PCI vendor id. Empty: its cards cannot compute, such as those of hypervisors.
absl::string_view CardMaker(absl::string_view vendor) {
  if (vendor == "0x10de") return "NVIDIA";
  if (vendor == "0x1002") return "AMD";
  if (vendor == "0x8086") return "Intel";
  return "";
}

void FindDevices(const std::string& program, wire::MachineFacts* machine) {
  if (program.empty()) return;
  for (std::string& maker : FindCards("/")) machine->add_cards(std::move(maker));
  auto devices = ListMachineDevices(program);
  if (!devices.ok()) {
    machine->set_devices_error(ValidUtf8(devices.status().message()));
    return;
  }
  for (wire::DeviceInfo& device : *devices) *machine->add_devices() = std::move(device);
}

}  // namespace

std::vector<std::string> FindCards(const std::string& root) {
  std::vector<std::string> makers;
  const auto add = [&makers](absl::string_view maker) {
    if (!maker.empty() && !absl::c_linear_search(makers, maker)) makers.emplace_back(maker);
  };
  const std::filesystem::path top = root;
  std::error_code none;
  // A container may have any one of several.
  for (const auto& each : std::filesystem::directory_iterator(top / "dev", none)) {
    const std::string file = each.path().filename().string();
    absl::string_view number = file;
    if (absl::ConsumePrefix(&number, "nvidia") && !number.empty() &&
        absl::c_all_of(number, absl::ascii_isdigit)) {
      add("NVIDIA");
    }
  }
  for (const auto& each : std::filesystem::directory_iterator(top / "sys/class/drm", none)) {
    if (!absl::StartsWith(each.path().filename().string(), "renderD")) continue;
    add(CardMaker(WordIn(each.path() / "device/vendor")));
  }
  // Cards without a driver are only here. Class 3: display controllers.
  for (const auto& each : std::filesystem::directory_iterator(top / "sys/bus/pci/devices", none)) {
    if (!absl::StartsWith(WordIn(each.path() / "class"), "0x03")) continue;
    add(CardMaker(WordIn(each.path() / "vendor")));
  }
  return makers;
}

wire::MachineFacts ExamineMachine(const ExamineOptions& options) {
  wire::MachineFacts machine;
  machine.set_name(MachineName());
  const MachineMemory memory = ReadMachineMemory();
  machine.set_memory_bytes(PhysicalMemory());
  machine.set_memory_limit_bytes(memory.total_bytes);
  machine.set_memory_free_bytes(memory.free_bytes);
  machine.set_firewall(FindFirewall());
  CheckDataDir(options.data_dir, &machine);
  ReadInterfaces(&machine);
  FindDevices(options.program, &machine);
  CheckMdns({.cancelled = options.cancelled}, &machine);
  return machine;
}

}  // namespace strata
