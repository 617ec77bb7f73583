#!/usr/bin/env bash
# `strata service` with fakes of systemd's programs, its units as systemd itself reads them, and what a node tells systemd.
# Usage: service_test.sh PROGRAM
set -uo pipefail

program=$1
# shellcheck source-path=SCRIPTDIR source=checks.sh
. "$(dirname "${BASH_SOURCE[0]}")/checks.sh"
unset STRATA_INSIDE XDG_CONFIG_HOME
export HOME=$work/home
mkdir -p "$HOME"

fakes=$work/fakes:$PATH
strata() { PATH=$fakes "$program" "$@" >"$work/out" 2>"$work/err" </dev/null; }
# fails_with STATUS PATTERN ARG…: one line.
fails_with() {
  local status=$1 pattern=$2 got=0
  shift 2
  strata "$@" || got=$?
  [[ $got == "$status" && $(wc -l <"$work/err") == 1 ]] && grep -qE -e "$pattern" "$work/err"
}
# notes NAME [STATUS]: a fake that notes how it was called.
notes() { fake "$1" "echo \"$1 \$*\" >>'$work/calls'; exit ${2:-0}"; }
calls() {
  local got
  got=$(tr '\n' ';' <"$work/calls")
  rm "$work/calls"
  [[ $got == "$1" ]] || { echo "called: $got" >>"$work/out" && false; }
}
notes systemctl
notes loginctl
notes journalctl
unit=$HOME/.config/systemd/user/strata.service

expect "there is none yet" fails_with 1 "there is no .*/strata.service: .strata service install. makes it" service status
expect "nor to be removed" fails_with 1 "there is no .*/strata.service" service uninstall
expect "options that a node refuses" fails_with 2 "--htp.*see strata node --help" service install --htp 7080
expect "are not written" test ! -e "$unit"
expect "a node of a root" env STRATA_INSIDE=1 bash -c '! "$1" service install 2>"$2" && grep -q "make a bundle of it" "$2"' _ "$program" "$work/err"

expect "it is installed" strata service install --http '[::]:7080' --name 'a$b "c" 100%' --any-model
expect "and started" calls "systemctl --user daemon-reload;systemctl --user enable strata.service;systemctl --user restart strata.service;loginctl enable-linger;"
expect "with its options" grep -qxF "ExecStart=\"$program\" \"node\" \"--http\" \"[::]:7080\" \"--name\" \"a\$\$b \\\"c\\\" 100%%\" \"--any-model\"" "$unit"
expect "and drained before it stops" grep -qxF "ExecStop=-\"$program\" drain" "$unit"
expect "others may read it" test "$(stat -c %a "$unit")" == 644
expect "its state is shown" strata service status
expect "by systemd" calls "systemctl --user --no-pager --lines=0 status strata.service;"
expect "its log is shown" strata service logs
expect "by journald" calls "journalctl --user-unit strata.service --no-pager --lines=200;"
expect "it is removed" strata service uninstall
expect "and stopped" calls "systemctl --user disable --now strata.service;systemctl --user daemon-reload;"
expect "its unit is gone" test ! -e "$unit"
ln -s "$program" "$work/fakes/strata"
expect "it is installed from the PATH" strata service install
expect "by a link that stays" grep -qF "ExecStart=\"$work/fakes/strata\" \"node\"" "$unit"
mkdir -p "$work/config"
echo 'data-dir = "/srv/my strata"' >"$work/config/node.toml"
expect "it is installed with a configuration" strata service install --config "$work/config/node.toml"
expect "which it is started with" grep -qxF "ExecStart=\"$work/fakes/strata\" \"node\" \"--config\" \"$work/config/node.toml\"" "$unit"
expect "and which names its data dir" grep -qxF "ExecStop=-\"$work/fakes/strata\" drain --data-dir \"/srv/my strata\"" "$unit"
echo 'nmae = "attic"' >"$work/config/node.toml"
expect "a wrong configuration" fails_with 2 "'nmae' is no option of a node" service install --config "$work/config/node.toml"
notes systemctl 1
expect "a manager that refuses" fails_with 1 ".systemctl --user daemon-reload. failed; what it says is above" service install
fakes=$work/none
expect "no systemd" fails_with 1 "systemctl cannot be run.*needs systemd" service install
fakes=$work/fakes:$PATH

# --- as systemd reads them --------------------------------------------------------------------------

notes systemctl
cp "$unit" "$work/strata.service"
if command -v systemd-analyze >/dev/null; then
  systemd-analyze verify --man=no "$work/strata.service" >"$work/out" 2>&1
  expect "a user's unit is right" test $? == 0
  if [[ $(id -u) == 0 && ! -e /etc/systemd/system/strata.service ]]; then
    mkdir "$work/packaged"
    expect "the system's is installed" strata service install --system --name kitchen
    mv /etc/systemd/system/strata.service "$work/strata.service"
    systemd-analyze verify --man=no "$work/strata.service" >"$work/out" 2>&1
    expect "the system's unit is right" test $? == 0
    "$program" reference unit /bin/sh >"$work/packaged/strata.service"
    expect "a package's drains this machine" grep -qxF 'ExecStop=-"/bin/sh" drain' "$work/packaged/strata.service"
    systemd-analyze verify --man=no "$work/packaged/strata.service" >"$work/out" 2>&1
    expect "so is a package's" test $? == 0
    systemd-analyze security --offline=true --threshold=30 "$work/strata.service" >"$work/out" 2>&1
    expect "and leaves a node few rights" test $? == 0
  else
    echo "skipped: the system's unit: it needs root, and no service there"
  fi
else
  echo "skipped: what systemd says of its units: it is not installed"
fi

# --- what a node tells it ---------------------------------------------------------------------------

python3 - "$work/notify" >"$work/told" <<'PY' &
import socket
import sys

listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
listener.bind(sys.argv[1])
while True:
    print(listener.recv(4096).decode(), flush=True)
PY
children+=($!)
wait_for test -S "$work/notify"
told() { grep -qx "$1" "$work/told"; }
NOTIFY_SOCKET=$work/notify WATCHDOG_USEC=200000 "$program" node --open --no-mdns --no-http --no-measure \
  --listen 127.0.0.1:0 --data-dir "$work/data" >"$work/out" 2>"$work/err" &
node=$!
children+=("$node")
expect "a node says that it is ready" wait_for told READY=1
expect "that it lives" wait_for told WATCHDOG=1
kill "$node"
expect "that it stops" wait_for told STOPPING=1
wait "$node"

finish
