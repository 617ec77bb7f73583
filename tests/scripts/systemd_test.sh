#!/usr/bin/env bash
# `strata service --system` under a real systemd, process 1 of namespaces of its own, with the programs of this
# system. Usage: systemd_test.sh PROGRAM
set -uo pipefail

program=$1
# shellcheck source-path=SCRIPTDIR source=checks.sh
. "$(dirname "${BASH_SOURCE[0]}")/checks.sh"

skip() {
  echo "skipped: $*"
  exit 0
}
[[ $(id -u) == 0 ]] || skip "only root may start a systemd"
[[ -x /usr/lib/systemd/systemd ]] || skip "systemd is not installed"
unshare --mount --net --pid --fork --cgroup true 2>/dev/null || skip "namespaces are not allowed here"

# A machine: the system's programs, a copy of its /etc, and else nothing; what is on it outlives its systemd.
root=$work/root
mkdir -p "$root"/{usr,proc,sys,dev,run,tmp,opt,root,etc,var/lib,var/log}
for link in bin sbin lib lib64; do ln -s "usr/$link" "$root/$link"; done
cp -a /etc/. "$root/etc/" 2>"$work/err"
rm -rf "$root/etc/systemd/system"/*.wants
# It was started before, and waits for no network.
tr -d - </proc/sys/kernel/random/uuid >"$root/etc/machine-id"
ln -sf /dev/null "$root/etc/systemd/system/systemd-networkd-wait-online.service"
cp "$program" "$root/opt/strata"

# boot: process 1 is in $machine.
boot() {
  unshare --mount --net --pid --fork --uts --ipc --cgroup --kill-child bash -c '
    root=$1
    ip link set lo up
    mount --make-rprivate /
    mount --bind "$root" "$root"
    mount --rbind /usr "$root/usr"
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount -t sysfs sysfs "$root/sys" && mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup" || exit
    mount -t tmpfs tmpfs "$root/run"
    cd "$root"
    exec env -i container=strata PATH=/usr/sbin:/usr/bin chroot . /usr/lib/systemd/systemd --system \
      --unit=multi-user.target --log-target=null --show-status=0' boot "$root" >"$work/boot" 2>&1 </dev/null &
  children+=($!)
  unshared=$!
  wait_for up
}
up() {
  machine=$(pgrep -P "$unshared") || { kill -0 "$unshared" 2>/dev/null && return 1; }
  [[ $(on systemctl is-active basic.target 2>/dev/null) == active ]]
}
# on CMD…: on the machine.
on() { nsenter -t "$machine" -m -n -p -u -i -C env -i PATH=/opt:/usr/sbin:/usr/bin HOME=/root chroot "$root" "$@" </dev/null; }
run() { on "$@" >"$work/out" 2>"$work/err"; }
shown() { on systemctl show strata.service --value -p "$1" 2>"$work/err"; }
runs() { [[ $(shown ActiveState) == active ]] && on curl -fs http://127.0.0.1:7080/health >"$work/out"; }
was_restarted() { [[ $(shown NRestarts) == "$1" ]] && runs; }

if ! boot; then
  cat "$work/boot"
  skip "systemd does not start in namespaces here"
fi
mkdir -p "$root/etc/strata"
echo 'name = "attic"' >"$root/etc/strata/node.toml"
run strata service install --system --open --no-mdns --no-measure --listen 127.0.0.1:7400
expect "it is installed, and ready when that ends" test "$(shown ActiveState)" == active
expect "its API answers" wait_for runs
expect "its state is shown" run strata service status --system
pid=$(shown MainPID)
expect "it is no root" test "$(on stat -c %u "/proc/$pid")" != 0
expect "its data dir is its own" test -s "$root/var/lib/private/strata/.local/state/strata/node_id"
expect "its configuration is read" on grep -q '"name":"attic"' <(on journalctl -o cat -u strata.service)
id=$(cat "$root/var/lib/private/strata/.local/state/strata/node_id")

on kill -KILL "$pid"
expect "killed, it comes back" wait_for was_restarted 1
mkdir -p "$root/etc/systemd/system/strata.service.d"
printf '[Service]\nWatchdogSec=6\n' >"$root/etc/systemd/system/strata.service.d/watchdog.conf"
run systemctl daemon-reload
run systemctl restart strata.service
expect "it tells the watchdog that it lives" wait_for runs
sleep 8
expect "as long as it does" was_restarted 0
on kill -STOP "$(shown MainPID)"
expect "hung, it comes back" wait_for was_restarted 1
run systemctl stop strata.service
expect "it is drained before it stops" grep -q "this machine's node has no layers any more" <(on journalctl -o cat -u strata.service)
expect "and stops well" test "$(shown Result)" == success

# The machine is switched off and on.
kill -KILL "$machine"
wait "$unshared" 2>/dev/null
expect "the machine starts again" boot
expect "and the node with it" wait_for runs
expect "with its id" test "$(cat "$root/var/lib/private/strata/.local/state/strata/node_id")" == "$id"
run strata service uninstall --system
expect "it is removed" test ! -e "$root/etc/systemd/system/strata.service"
expect "and does not run" test "$(shown ActiveState)" == inactive

finish
