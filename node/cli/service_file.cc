#include "node/cli/service_file.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace strata {
namespace {

constexpr absl::string_view kUnit =
    R"($HEAD
[Unit]
Description=Strata node
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart=$EXEC
# Its layers and their requests go to other nodes first, where there are some with room.
ExecStop=-$DRAIN
Restart=on-failure
RestartSec=2
WatchdogSec=60
TimeoutStopSec=120
KillMode=mixed
LimitNOFILE=65536
UMask=0077
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
$MORE
[Install]
WantedBy=$TARGET
)";

constexpr absl::string_view kWritten =
    "# Written by `strata service install`, and removed by `strata service uninstall`.";
constexpr absl::string_view kPackaged =
    "# Of a package: the node's options are in /etc/strata/node.toml (strata config).";

// A manager of one user may not do most of this. Not MemoryDenyWriteExecute: graphics drivers
// compile shaders. Not PrivateDevices: GPUs are devices.
constexpr absl::string_view kSystemOnly = R"(DynamicUser=yes
StateDirectory=strata
StateDirectoryMode=0700
Environment=HOME=/var/lib/strata
AmbientCapabilities=
CapabilityBoundingSet=
PrivateMounts=yes
PrivateTmp=yes
ProcSubset=all
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome=read-only
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
ProtectSystem=strict
RemoveIPC=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_NETLINK AF_UNIX
RestrictNamespaces=yes
SystemCallArchitectures=native
SystemCallErrorNumber=EPERM
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
)";

// One word of a command, as systemd.service(5) reads it.
std::string Quoted(const std::string& word) {
  return absl::StrCat(
      "\"",
      absl::StrReplaceAll(
          word, {{"\\", "\\\\"}, {"\"", "\\\""}, {"%", "%%"}, {"$", "$$"}, {"\n", "\\n"}}),
      "\"");
}

std::string Xml(const std::string& text) {
  return absl::StrCat("    <string>",
                      absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}}),
                      "</string>\n");
}

std::vector<std::string> Command(const ServiceSpec& spec) {
  std::vector<std::string> words = {spec.program, "node"};
  words.insert(words.end(), spec.node_options.begin(), spec.node_options.end());
  return words;
}

}  // namespace

std::string SystemdUnit(const ServiceSpec& spec) {
  std::string more;
  if (spec.is_system) {
    more = kSystemOnly;
    if (!spec.groups.empty()) {
      absl::StrAppend(&more, "SupplementaryGroups=", absl::StrJoin(spec.groups, " "), "\n");
    }
  }
  const std::string exec = absl::StrJoin(
      Command(spec), " ",
      [](std::string* to, const std::string& word) { absl::StrAppend(to, Quoted(word)); });
  std::string drain = absl::StrCat(Quoted(spec.program), " drain");
  if (!spec.data_dir.empty()) absl::StrAppend(&drain, " --data-dir ", Quoted(spec.data_dir));
  return absl::StrReplaceAll(
      kUnit, {{"$HEAD", spec.is_packaged ? kPackaged : kWritten},
              {"$EXEC", exec},
              {"$DRAIN", drain},
              {"$MORE\n", more.empty() ? "\n" : absl::StrCat(more, "\n")},
              {"$TARGET", spec.is_system ? "multi-user.target" : "default.target"}});
}

std::string LaunchdPlist(const ServiceSpec& spec) {
  std::string words;
  for (const std::string& word : Command(spec)) words += Xml(word);
  return absl::StrCat(R"(<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
  <key>Label</key>
  <string>strata.node</string>
  <key>ProgramArguments</key>
  <array>
)",
                      words, R"(  </array>
  <key>RunAtLoad</key>
  <true/>
  <key>KeepAlive</key>
  <dict>
    <key>SuccessfulExit</key>
    <false/>
  </dict>
  <key>ExitTimeOut</key>
  <integer>120</integer>
  <key>SoftResourceLimits</key>
  <dict>
    <key>NumberOfFiles</key>
    <integer>8192</integer>
  </dict>
</dict>
</plist>
)");
}

}  // namespace strata
