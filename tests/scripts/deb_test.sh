#!/usr/bin/env bash
# The Debian package: as lintian sees it, and installed, upgraded, removed and purged by dpkg. Usage: deb_test.sh PROGRAM
set -uo pipefail

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../scripts" && pwd -P)
program=$1
# shellcheck source-path=SCRIPTDIR source=checks.sh
. "$(dirname "${BASH_SOURCE[0]}")/checks.sh"

run() { "$@" >"$work/out" 2>"$work/err" </dev/null; }

if ! command -v dh >/dev/null || ! command -v lintian >/dev/null || ! dpkg --status build-essential >/dev/null 2>&1; then
  echo "skipped: debhelper, lintian or build-essential is not installed: scripts/setup base test package"
  finish
fi
# Nobody downloads it: it need not be small.
run env STRATA_INSIDE=1 DPKG_DEB_COMPRESSOR_TYPE=gzip DPKG_DEB_COMPRESSOR_LEVEL=1 "$scripts/package" deb --program "$program" --folder "$work"
expect "a package is made" test $? == 0
[[ $failed == 0 ]] || finish
deb=$(echo "$work"/strata_*.deb)

lintian --allow-root --fail-on error,warning "$deb" >"$work/lintian" 2>&1 &
lintian=$!

# The system's own folders, with what dpkg changes in them kept in memory: its libraries are those that the package needs.
in_overlay() {
  unshare --mount --pid --fork --kill-child bash -c '
    set -e
    mount -t tmpfs tmpfs /run
    for dir in usr etc var; do
      mkdir -p "/run/$dir" "/run/$dir.work"
      mount -t overlay -o "lowerdir=/$dir,upperdir=/run/$dir,workdir=/run/$dir.work" overlay "/$dir"
    done
    mount -t proc proc /proc
    rm -f /etc/dpkg/dpkg.cfg.d/strata # Pages are installed, too.
    cd "$0"
    exec bash "$@"' "$work" "$@"
}
cat >"$work/life" <<'LIFE'
# Lines that say what holds, for the test: what goes wrong is on stderr.
set -u
holds() { if "${@:2}"; then echo "$1"; else echo "not: $1" >&2; fi; }
export HOME=$PWD/home PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive
mkdir home
files() { find /etc /usr /var/lib -path '*strata*' ! -path '/var/lib/strata*' | sort; }
files >before
holds installed dpkg -i --force-unsafe-io "$1"
holds complete test -z "$(dpkg --verify strata)"
/usr/bin/strata demo --json >demo.json
holds demo grep -q '"text"' demo.json
holds page test -s /usr/share/man/man1/strata-run.1.gz
holds completion bash -c '. /usr/share/bash-completion/completions/strata && complete -p strata'
holds unit systemd-analyze verify --man=no /usr/lib/systemd/system/strata.service
holds "not enabled" test ! -e /etc/systemd/system/multi-user.target.wants/strata.service
holds configuration strata config check
echo 'name = "kitchen"' >>/etc/strata/node.toml
strata node --open --no-mdns --no-http --no-measure --listen 127.0.0.1:0 --data-dir "$PWD/data" >ready 2>/dev/null &
for _ in $(seq 300); do if [[ -s ready ]]; then break; fi; sleep 0.1; done
address=$(sed -n 's/.*"address":"\([^"]*\)".*/\1/p' ready)
holds "drained before it stops" strata drain --data-dir "$PWD/data"
kill $!
wait
holds upgraded dpkg -i --force-unsafe-io --force-confdef "$2"
holds "settings kept" grep -q kitchen /etc/strata/node.toml
mkdir -p /var/lib/private/strata/key
holds removed dpkg -r strata
holds "program gone" test ! -e /usr/bin/strata
holds "key kept" test -e /var/lib/private/strata/key
holds purged dpkg -P strata
files >after
holds "nothing left" cmp before after
LIFE
if [[ $(id -u) != 0 ]] || ! run in_overlay -c 'touch /usr/written'; then
  echo "skipped: dpkg's part: it needs root, namespaces and overlays, which are not all allowed here"
else
  # The next version, which differs by its number alone.
  dpkg-deb -R "$deb" "$work/next"
  sed -i '/^Version:/s/$/+1/' "$work/next/DEBIAN/control"
  dpkg-deb -Znone -b "$work/next" "$work/next.deb" >"$work/out"
  run in_overlay "$work/life" "$deb" "$work/next.deb"
  for what in installed complete demo page completion unit "not enabled" configuration "drained before it stops" upgraded "settings kept" removed "program gone" "key kept" purged "nothing left"; do
    expect "$what" grep -qx "$what" "$work/out"
  done
fi

wait "$lintian"
status=$?
cp "$work/lintian" "$work/out"
expect "lintian finds no errors and warnings" test "$status" == 0
expect "nor says anything else" test ! -s "$work/lintian"

finish
