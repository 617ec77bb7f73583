#include "node/doctor/doctor_advice.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "transport/base/peer_addresses.h"
#include "transport/security/tls_look.h"

namespace strata {
namespace {

using Firewall = wire::MachineFacts::Firewall;
using Result = wire::ReachResult;

// The rank of an outcome: an answer of a machine says more than silence.
int Informativeness(const Result& result) {
  switch (result.outcome()) {
    case Result::CONNECTED:
      return 7;
    case Result::REFUSED:
      return 6;
    case Result::RESET:
      return 5;
    case Result::TIMED_OUT:
      return 4;
    case Result::NO_NAME:
      return 3;
    case Result::UNREACHABLE:
      return 2;
    case Result::NOT_ALLOWED:
      return 0;
    default:
      return 1;
  }
}

std::string PortOf(const std::string& address) { return address.substr(address.rfind(':') + 1); }

bool Applies(Firewall firewall, Firewall which) {
  return firewall == which || firewall == wire::MachineFacts::NONE_SEEN;
}

std::string MacText(Firewall firewall) {
  if (firewall != wire::MachineFacts::MACOS && firewall != wire::MachineFacts::NONE_SEEN) return "";
  return "macOS:     System Settings > Network > Firewall > Options: let strata in";
}

std::string Lines(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) {
    if (!line.empty()) absl::StrAppend(&out, "\n", line);
  }
  return out;
}

}  // namespace

std::string ReachText(const Result& result) {
  const std::string& address = result.address();
  switch (result.outcome()) {
    case Result::CONNECTED:
      if (result.error().empty()) return absl::StrCat(address, " can be connected to");
      return absl::StrCat(address, " can be connected to, but no node answers there (",
                          result.error(), ")");
    case Result::REFUSED:
      return absl::StrCat(address,
                          " is refused: a machine is there, but no program listens on port ",
                          PortOf(address));
    case Result::TIMED_OUT:
      return absl::StrCat(address, " does not answer at all: a firewall drops what comes to port ",
                          PortOf(address), ", or nobody has this address");
    case Result::UNREACHABLE:
      return absl::StrCat(address, " is out of reach (", result.error(),
                          "): the machine is off or asleep, its cable or Wi-Fi is out, it is on "
                          "another network, or its firewall rejects the connection");
    case Result::RESET:
      return absl::StrCat(address, " closes the connection at once (", result.error(), ")");
    case Result::NO_NAME:
      return absl::StrCat(address, ": the name is not known (", result.error(), ")");
    case Result::NOT_ALLOWED:
      return absl::StrCat(address,
                          " was not tried: it is neither a node's address nor the caller's");
    default:
      return absl::StrCat(address,
                          " fails: ", result.error().empty() ? "no reason given" : result.error());
  }
}

const Result& MostInformative(const std::vector<Result>& tries) {
  return *std::max_element(tries.begin(), tries.end(), [](const Result& a, const Result& b) {
    return Informativeness(a) < Informativeness(b);
  });
}

std::string ReachAdvice(const Result& result, const ReachAdviceOptions& options) {
  const std::string from = result.from_host().empty() ? "HOST" : result.from_host();
  const std::string port = PortOf(result.address());
  switch (result.outcome()) {
    case Result::CONNECTED:
      if (SaysWrongCertificate(result.error())) {
        return absl::StrCat(
            "A node with another key listens there, or one of the two has a wrong clock. If it "
            "should be in this cluster, stop it, move away the file cluster_key in its data dir, "
            "start it "
            "again, and admit it: strata approve ",
            result.address());
      }
      return absl::StrCat("Something else listens on port ", port, " of ", options.machine,
                          ": see what 'strata node' printed there when it started; that has its "
                          "address.");
    case Result::REFUSED:
      return absl::StrCat(
          "On ", options.machine,
          ", see whether 'strata node' runs, and on which port: it prints that when "
          "it starts. With --listen [::]:7400 it is always the same.");
    case Result::TIMED_OUT:
    case Result::RESET:
      return absl::StrCat("On ", options.machine, ", let TCP from ", from, " in: port ", port,
                          options.node_port
                              ? " for the node, and the ports that the system chooses for links."
                              : " is one of those that the system chooses for links, so all ports.",
                          AllowTcp(from, options.firewall));
    case Result::UNREACHABLE:
      return absl::StrCat("Wake ", options.machine,
                          " up, check its cable or Wi-Fi, and whether "
                          "both are on the same network (a guest Wi-Fi is another one). If it is "
                          "on and its firewall rejects the connection, let TCP from ",
                          from, " in:", AllowTcp(from, options.firewall));
    case Result::NO_NAME:
      return "Give the machine's address instead of its name: 'ip address' or its network settings "
             "show it.";
    default:
      return "";
  }
}

std::string AllowTcp(const std::string& from_host, Firewall firewall) {
  // The scope is valid on this machine alone.
  const std::string from = from_host.substr(0, from_host.find('%'));
  const bool ipv6 = absl::StrContains(from, ':');
  return Lines({
      Applies(firewall, wire::MachineFacts::UFW)
          ? absl::StrCat("ufw:       sudo ufw allow proto tcp from ", from)
          : "",
      Applies(firewall, wire::MachineFacts::FIREWALLD)
          ? absl::StrCat("firewalld: sudo firewall-cmd --zone=trusted --add-source=", from,
                         " && sudo firewall-cmd --runtime-to-permanent")
          : "",
      firewall == wire::MachineFacts::NONE_SEEN
          ? absl::StrCat("nftables:  sudo nft insert rule inet filter input ", ipv6 ? "ip6" : "ip",
                         " saddr ", from,
                         " meta l4proto tcp accept"
                         "  # as your table and chain are called")
          : "",
      MacText(firewall),
  });
}

std::string AllowMdns(Firewall firewall) {
  return Lines({
      Applies(firewall, wire::MachineFacts::UFW) ? "ufw:       sudo ufw allow 5353/udp" : "",
      Applies(firewall, wire::MachineFacts::FIREWALLD)
          ? "firewalld: sudo firewall-cmd --add-service=mdns && sudo firewall-cmd "
            "--runtime-to-permanent"
          : "",
      firewall == wire::MachineFacts::NONE_SEEN
          ? "nftables:  sudo nft insert rule inet filter input udp dport 5353 accept  # as your "
            "table and chain are called"
          : "",
      MacText(firewall),
  });
}

}  // namespace strata
