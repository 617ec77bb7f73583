#include "tests/net/network.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/support/namespace_holder.h"

namespace strata {
namespace {

constexpr char kEnter[] = "/usr/bin/nsenter";

}  // namespace

absl::Status CanMakeNetworks() {
  const pid_t pid = HoldNetworkNamespace();
  if (pid == 0) return absl::PermissionDeniedError("network namespaces are not allowed");
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  for (const char* tool : {kEnter, "/usr/sbin/ip", "/usr/sbin/nft"}) {
    if (access(tool, X_OK) != 0) return absl::NotFoundError(absl::StrCat(tool, " is missing"));
  }
  Host a("a"), b("b");
  if (!a.TryShell(absl::StrCat("ip link add x type veth peer name y netns ", b.holder()),
                  nullptr)) {
    return absl::PermissionDeniedError("virtual cables are not allowed");
  }
  return absl::OkStatus();
}

Host::Host(std::string name, Sys sys)
    : name_(std::move(name)), sys_(sys), holder_(HoldNetworkNamespace()) {
  if (holder_ != 0) TryShell("ip link set lo up", nullptr);
}

Host::~Host() {
  if (holder_ == 0) return;
  kill(holder_, SIGKILL);
  waitpid(holder_, nullptr, 0);
}

std::vector<std::string> Host::Inside(std::vector<std::string> args) const {
  if (sys_ == Sys::kOwn) {
    args.insert(args.begin(), {"unshare", "--mount", "sh", "-c",
                               "mount -t sysfs sysfs /sys && exec \"$@\"", "sh"});
  }
  for (const std::string& folder : hidden_) {
    args.insert(args.begin(), {"unshare", "--mount", "sh", "-c",
                               "mount -t tmpfs none \"$0\" && exec \"$@\"", folder});
  }
  args.insert(args.begin(), {"nsenter", absl::StrCat("--net=/proc/", holder_, "/ns/net"), "--"});
  return args;
}

bool Host::TryShell(const std::string& script, std::string* out, absl::Duration limit) const {
  absl::Mutex mu;
  std::string said;
  const auto add = [&](absl::string_view line) {
    absl::MutexLock lock(mu);
    absl::StrAppend(&said, line, "\n");
  };
  ChildProcess::Options options;
  options.program = kEnter;
  options.args = Inside({"/bin/sh", "-euc", script});
  options.env = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin"};
  options.on_stdout_line = add;
  options.on_stderr_line = add;
  auto process = ChildProcess::Start(std::move(options));
  if (!process.ok()) {
    if (out != nullptr) *out = process.status().ToString();
    return false;
  }
  const bool ended = (*process)->WaitForExit(limit);
  const bool done = ended && (*process)->exit().code == 0 && (*process)->exit().signal == 0;
  process->reset();
  if (out != nullptr) *out = said;
  return done;
}

std::string Host::Shell(const std::string& script) const {
  std::string out;
  EXPECT_TRUE(TryShell(script, &out)) << name_ << ": " << script << "\n" << out;
  return out;
}

// At most 15 bytes, and unique in the switch.
std::string Switch::PortOf(const Host& host, const std::string& interface) {
  return absl::StrCat(host.name(), "-", interface).substr(0, 15);
}

void Switch::Plug(const Host& host, const std::string& interface,
                  const std::vector<std::string>& addresses) {
  const std::string port = PortOf(host, interface);
  host_.Shell(absl::StrCat("ip link add ", port, " type veth peer name ", interface, " netns ",
                           host.holder(), " && ip link set ", port, " master br0 up"));
  std::string script = absl::StrCat("ip link set ", interface, " up");
  if (!addresses.empty()) {
    script = absl::StrCat("ip link set ", interface, " addrgenmode none && ", script);
  }
  for (const std::string& address : addresses) {
    const bool ipv6 = address.find(':') != std::string::npos;
    absl::StrAppend(&script, " && ip addr add ", address, " dev ", interface, ipv6 ? " nodad" : "");
  }
  host.Shell(script);
}

void Switch::SetCable(const Host& host, const std::string& interface, bool plugged) {
  host_.Shell(absl::StrCat("ip link set ", PortOf(host, interface), plugged ? " up" : " down"));
}

void Switch::SetSpeed(const Host& host, const std::string& interface, uint32_t mbit_per_s) {
  // Two packets.
  constexpr uint32_t burst_bytes = 3200;
  const std::string shape =
      absl::StrCat(" root tbf rate ", mbit_per_s, "mbit burst ", burst_bytes, " limit ", 4u << 20);
  host.Shell(absl::StrCat("tc qdisc replace dev ", interface, shape));
  host_.Shell(absl::StrCat("tc qdisc replace dev ", PortOf(host, interface), shape));
}

void Switch::SetFullSpeed(const Host& host, const std::string& interface) {
  const std::string none = "tc qdisc del dev ";
  host.Shell(absl::StrCat(none, interface, " root"));
  host_.Shell(absl::StrCat(none, PortOf(host, interface), " root"));
}

void Switch::Lose(const Host& from, const Host* to, const std::string& interface, int percent) {
  std::string match = absl::StrCat("iifname ", PortOf(from, interface));
  if (to != nullptr) absl::StrAppend(&match, " oifname ", PortOf(*to, interface));
  if (percent < 100) absl::StrAppend(&match, " numgen random mod 100 < ", percent);
  host_.Shell(
      absl::StrCat("nft -f - <<'END'\n"
                   "table bridge lossy {\n"
                   "  chain pass { type filter hook forward priority 0; }\n"
                   "}\n"
                   "add rule bridge lossy pass ",
                   match, " drop\nEND\n"));
}

void Switch::LoseNothing() { host_.TryShell("nft delete table bridge lossy", nullptr); }

NodeOn::NodeOn(const Host* host, std::string name, std::vector<std::string> options,
               Measure measure, const Limits* limits)
    : host_(host), name_(std::move(name)) {
  std::vector<std::string> args = {STRATA_PROGRAM,       "node",      "--name", name_,
                                   "--stop-with-parent", "--threads", "1"};
  if (std::ranges::find(options, "--data-dir") == options.end()) args.push_back("--ephemeral");
  if (measure == Measure::kNo) args.push_back("--no-measure");
  args.insert(args.end(), options.begin(), options.end());
  ChildProcess::Options start;
  start.program = kEnter;
  if (limits != nullptr) args = limits->Inside(std::move(args));
  start.args = host->Inside(std::move(args));
  start.on_stdout_line = [lines = lines_](absl::string_view line) {
    absl::MutexLock lock(lines->mu);
    lines->out.emplace_back(line);
  };
  start.on_stderr_line = [lines = lines_](absl::string_view line) {
    absl::MutexLock lock(lines->mu);
    lines->err.emplace_back(line);
  };
  auto process = ChildProcess::Start(std::move(start));
  EXPECT_TRUE(process.ok()) << process.status();
  if (!process.ok()) return;
  process_ = *std::move(process);
  std::string line;
  {
    absl::MutexLock lock(lines_->mu);
    const auto is_up = [this]()
                           ABSL_SHARED_LOCKS_REQUIRED(lines_->mu) { return !lines_->out.empty(); };
    lines_->mu.AwaitWithTimeout(absl::Condition(&is_up), absl::Seconds(60));
    if (!lines_->out.empty()) line = lines_->out[0];
  }
  ready_ = absl::Now();
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(json.is_object() && json.contains("node")) << line << errors();
  if (!json.is_object() || !json.contains("node")) return;
  id_ = json["node"]["id"];
  address_ = json["node"]["address"];
  port_ = static_cast<uint16_t>(std::stoi(address_.substr(address_.rfind(':') + 1)));
}

std::string NodeOn::errors() const {
  absl::MutexLock lock(lines_->mu);
  return absl::StrJoin(lines_->err, "\n");
}

nlohmann::json NodeOn::Nodes() const {
  std::string out;
  const std::string command = absl::StrCat(STRATA_PROGRAM, " nodes --json --node ", address_);
  if (!host_->TryShell(command, &out)) return nullptr;
  return nlohmann::json::parse(out, nullptr, /*allow_exceptions=*/false);
}

nlohmann::json NodeOn::Find(const nlohmann::json& nodes, const std::string& id) {
  if (!nodes.is_object()) return nullptr;
  for (const auto& node : nodes["nodes"]) {
    if (node["id"] == id) return node;
  }
  return nullptr;
}

nlohmann::json NodeOn::Node(const std::string& id) const { return Find(Nodes(), id); }

bool NodeOn::IsAlive(const nlohmann::json& node) {
  return node.is_object() && node["state"] == "alive" && node["address"] != "";
}

bool NodeOn::Sees(const NodeOn& other) const { return IsAlive(Node(other.id())); }

bool NodeOn::SeesGone(const NodeOn& other) const {
  const nlohmann::json node = Node(other.id());
  return node.is_object() && node["state"] == "gone";
}

bool AgreeOn(const std::vector<std::unique_ptr<NodeOn>>& nodes, size_t* coordinator) {
  *coordinator = nodes.size();
  std::string id;
  for (const auto& node : nodes) {
    if (node == nullptr) continue;
    const nlohmann::json seen = node->Nodes();
    if (!seen.is_object() || !seen["coordinator"].is_string()) return false;
    if (id.empty()) id = seen["coordinator"];
    if (seen["coordinator"] != id) return false;
  }
  const auto found = std::ranges::find_if(
      nodes, [&id](const auto& node) { return node != nullptr && node->id() == id; });
  *coordinator = static_cast<size_t>(found - nodes.begin());
  return found != nodes.end();
}

bool Eventually(const std::function<bool()>& is_so, absl::Duration limit) {
  const absl::Time until = absl::Now() + limit;
  while (!is_so()) {
    if (absl::Now() > until) return false;
  }
  return true;
}

}  // namespace strata
