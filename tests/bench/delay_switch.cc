// A switch for machines that are network namespaces of this one, with links of a given speed and
// delay, which the kernel here cannot always do by itself (netem). Each machine gets an interface
// `eth0` with the address 10.79.0.N, N from 1. Prints {"machines":[PID,…]}, processes inside of
// each, and forwards until the end of stdin; then everything is gone.
//
//   delay_switch MACHINES MBIT_PER_S[,MBIT_PER_S…] DELAY_US
//
// One speed is that of all links, else each machine's has its own. Each direction between a machine
// and the switch carries a frame at a time; the delay is between both.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "tests/support/namespace_holder.h"

namespace strata {
namespace {

constexpr size_t kFrameBytesMax = 2048;
constexpr size_t kMacBytes = 6;
constexpr size_t kQueueBytesMax = 8 << 20;  // to one machine; frames beyond are dropped
constexpr int64_t kNsPerS = 1'000'000'000;

int64_t NowNs() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kNsPerS + now.tv_nsec;
}

bool SetUp(int socket_fd, const char* interface) {
  ifreq request = {};
  strncpy(request.ifr_name, interface, IFNAMSIZ - 1);
  if (ioctl(socket_fd, SIOCGIFFLAGS, &request) != 0) return false;
  request.ifr_flags |= IFF_UP;
  return ioctl(socket_fd, SIOCSIFFLAGS, &request) == 0;
}

bool SetAddress(int socket_fd, const char* interface, unsigned long what, const char* address) {
  ifreq request = {};
  strncpy(request.ifr_name, interface, IFNAMSIZ - 1);
  sockaddr_in in = {};
  in.sin_family = AF_INET;
  inet_pton(AF_INET, address, &in.sin_addr);
  std::memcpy(&request.ifr_addr, &in, sizeof(in));
  return ioctl(socket_fd, what, &request) == 0;
}

// The switch's end of the machine's cable, or -1. Leaves this process in the machine's network.
int PlugIn(pid_t machine, size_t number) {
  const int network = open(absl::StrCat("/proc/", machine, "/ns/net").c_str(), O_RDONLY);
  const bool inside = network >= 0 && setns(network, CLONE_NEWNET) == 0;
  close(network);
  if (!inside) return -1;
  const int tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
  const int control = socket(AF_INET, SOCK_DGRAM, 0);
  ifreq request = {};
  strncpy(request.ifr_name, "eth0", IFNAMSIZ - 1);
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  const std::string address = absl::StrCat("10.79.0.", number);
  const bool done = tap >= 0 && control >= 0 && ioctl(tap, TUNSETIFF, &request) == 0 &&
                    SetAddress(control, "eth0", SIOCSIFADDR, address.c_str()) &&
                    SetAddress(control, "eth0", SIOCSIFNETMASK, "255.255.255.0") &&
                    SetUp(control, "lo") && SetUp(control, "eth0");
  close(control);
  return done ? tap : -1;
}

class Switch {
 public:
  // A tap and a speed for each machine.
  Switch(const std::vector<int>& taps, const std::vector<uint32_t>& mbit_per_s, int64_t delay_ns)
      : delay_ns_(delay_ns) {
    for (size_t i = 0; i < taps.size(); ++i) {
      ports_.push_back({.tap = taps[i], .bits_per_s = mbit_per_s[i] * 1e6});
    }
  }

  void Run() {
    std::vector<pollfd> polled;
    for (const Port& port : ports_) polled.push_back({port.tap, POLLIN, 0});
    polled.push_back({STDIN_FILENO, POLLIN, 0});
    while (true) {
      const int64_t wait_ns = std::max<int64_t>(0, NextDueNs() - NowNs());
      const timespec wait = {wait_ns / kNsPerS, wait_ns % kNsPerS};
      if (ppoll(polled.data(), polled.size(), &wait, nullptr) < 0) return;
      if (polled.back().revents != 0) return;
      for (size_t i = 0; i < ports_.size(); ++i) {
        if (polled[i].revents != 0) Receive(i);
      }
      Deliver();
    }
  }

 private:
  struct Frame {
    int64_t due_ns;
    std::string bytes;
  };
  struct Port {
    int tap;
    double bits_per_s;
    int64_t in_free_ns = 0;  // when the cable to the switch has carried what was sent
    int64_t out_free_ns = 0;
    std::deque<Frame> out = {};
    size_t out_bytes = 0;
  };

  static int64_t CarryNs(const Port& port, size_t bytes) {
    return static_cast<int64_t>(static_cast<double>(bytes) * 8e9 / port.bits_per_s);
  }

  int64_t NextDueNs() const {
    int64_t due_ns = NowNs() + kNsPerS;
    for (const Port& port : ports_) {
      if (!port.out.empty()) due_ns = std::min(due_ns, port.out.front().due_ns);
    }
    return due_ns;
  }

  void Receive(size_t from) {
    char buffer[kFrameBytesMax];
    while (true) {
      const ssize_t n = read(ports_[from].tap, buffer, sizeof(buffer));
      if (n < static_cast<ssize_t>(2 * kMacBytes)) return;
      const std::string frame(buffer, static_cast<size_t>(n));
      int64_t& free_ns = ports_[from].in_free_ns;
      free_ns = std::max(free_ns, NowNs()) + CarryNs(ports_[from], frame.size());
      where_[frame.substr(kMacBytes, kMacBytes)] = from;
      const auto to = where_.find(frame.substr(0, kMacBytes));
      for (size_t i = 0; i < ports_.size(); ++i) {
        if (i != from && (to == where_.end() || to->second == i)) {
          Queue(&ports_[i], frame, free_ns + delay_ns_);
        }
      }
    }
  }

  void Queue(Port* port, const std::string& frame, int64_t at_ns) {
    if (port->out_bytes + frame.size() > kQueueBytesMax) return;
    port->out_free_ns = std::max(port->out_free_ns, at_ns) + CarryNs(*port, frame.size());
    port->out_bytes += frame.size();
    port->out.push_back({port->out_free_ns, frame});
  }

  void Deliver() {
    const int64_t now_ns = NowNs();
    for (Port& port : ports_) {
      while (!port.out.empty() && port.out.front().due_ns <= now_ns) {
        const std::string& bytes = port.out.front().bytes;
        if (write(port.tap, bytes.data(), bytes.size()) < 0) ++n_lost_;  // as on a cable
        port.out_bytes -= bytes.size();
        port.out.pop_front();
      }
    }
  }

  const int64_t delay_ns_;
  std::vector<Port> ports_;
  std::map<std::string, size_t> where_;  // by hardware address
  uint64_t n_lost_ = 0;
};

int Main(int argc, char** argv) {
  uint32_t n_machines = 0, delay_us = 0;
  std::vector<uint32_t> mbit_per_s;
  for (const absl::string_view speed : absl::StrSplit(argc > 2 ? argv[2] : "", ',')) {
    if (!absl::SimpleAtoi(speed, &mbit_per_s.emplace_back())) mbit_per_s.back() = 0;
  }
  if (argc != 4 || !absl::SimpleAtoi(argv[1], &n_machines) ||
      !absl::SimpleAtoi(argv[3], &delay_us) || n_machines > 200 ||
      absl::c_linear_search(mbit_per_s, 0u) ||
      (mbit_per_s.size() != 1 && mbit_per_s.size() != n_machines)) {
    std::fprintf(stderr, "usage: delay_switch MACHINES MBIT_PER_S[,MBIT_PER_S…] DELAY_US\n");
    return 2;
  }
  mbit_per_s.resize(n_machines, mbit_per_s[0]);
  prctl(PR_SET_TIMERSLACK, 1);  // else waits end up to 50 us late
  std::vector<pid_t> machines;
  std::vector<int> taps;
  for (uint32_t i = 0; i < n_machines; ++i) machines.push_back(HoldNetworkNamespace());
  for (uint32_t i = 0; i < n_machines; ++i) {
    taps.push_back(machines[i] == 0 ? -1 : PlugIn(machines[i], i + 1));
    if (taps.back() < 0) {
      std::fprintf(stderr, "delay_switch: network namespaces or TAP are not allowed here\n");
      return 1;
    }
  }
  std::puts(absl::StrCat("{\"machines\":[", absl::StrJoin(machines, ","), "]}").c_str());
  std::fflush(stdout);
  Switch(taps, mbit_per_s, int64_t{delay_us} * 1000).Run();
  return 0;
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) { return strata::Main(argc, argv); }
