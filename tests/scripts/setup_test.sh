#!/usr/bin/env bash
# scripts/setup and scripts/in where something is missing: one clear line, and nothing half made.
#
# The tools that would change the system are fakes, found first on the PATH: nothing is installed,
# and no network is needed. Usage: setup_test.sh [SCRIPTS-FOLDER]
set -uo pipefail

scripts=$(cd "${1:-$(dirname "${BASH_SOURCE[0]}")/../../scripts}" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=checks.sh
. "$(dirname "${BASH_SOURCE[0]}")/checks.sh"
fakes=$work/fakes
export STRATA_CACHE_DIR=$work/cache STRATA_NATIVE=0 STRATA_APT_ETC=$work/apt
unset STRATA_INSIDE STRATA_MIRROR STRATA_ROOT_DIR SUDO_USER SUDO_UID

# A fresh machine: root, with room on its disk, a mirror and a debootstrap that works.
fresh() {
  rm -rf "$fakes" "$work/cache" "$work/apt"
  mkdir -p "$fakes" "$work/apt/sources.list.d"
  echo "deb http://mirror.invalid/debian bookworm main" >"$work/apt/sources.list"
  fake id 'if [[ $1 == -u ]]; then echo 0; else echo root; fi'
  fake df 'echo Filesystem; echo disk 0 0 99999999 0% /'
  fake apt-get 'exit 100'
  fake unshare 'while [[ $1 == -* ]]; do shift; done; exec "$@"'
  fake debootstrap 'args=("$@"); dir=${args[$#-3]}; mkdir -p "$dir"/{etc,usr,var}; echo made'
}

run() { { PATH=$fakes:$PATH "$@" >"$work/out" 2>"$work/err" </dev/null; } 2>/dev/null; }

# fails_with STATUS LINES PATTERN CMD…: the message is as long as that, and its last line says so.
fails_with() {
  local status=$1 lines=$2 pattern=$3 got=0
  shift 3
  run "$@" || got=$?
  [[ $got == "$status" && $(wc -l <"$work/err") == "$lines" ]] && tail -n 1 "$work/err" | grep -qE -e "$pattern"
}

fresh
fake id 'if [[ $1 == -u ]]; then echo 1000; else echo someone; fi'
expect NotRootSaysSudo fails_with 1 1 "needs root: run 'sudo scripts/setup base' once" "$scripts/setup" base
expect NotRootMakesNothing test ! -e "$work/cache"
expect InWithoutRootSaysSudo fails_with 1 1 "sudo scripts/setup base" "$scripts/in" true

fresh
rm "$fakes/debootstrap"
if ! PATH=$fakes:/usr/bin:/bin command -v debootstrap >/dev/null && [[ ! -x /usr/sbin/debootstrap ]]; then
  expect NoDebootstrapSaysSo fails_with 1 2 "debootstrap is missing" "$scripts/setup" base
fi

fresh
fake df 'echo Filesystem; echo disk 0 0 1000 0% /'
expect DiskFullIsSeenFirst fails_with 1 1 "disk full: .* has 1000 kB free, this needs [0-9]+ kB" "$scripts/setup" base
expect DiskFullMakesNothing test ! -e "$work/cache/forky"

if [[ -e /usr/share/keyrings/debian-archive-keyring.gpg || -e /usr/share/keyrings/debian-archive-keyring.pgp ]]; then
  fresh
  fake debootstrap 'echo "E: cannot write: No space left on device"; exit 1'
  expect DiskFullDuringSetUp fails_with 1 2 "disk full: free some space" "$scripts/setup" base

  fresh
  fake debootstrap 'echo "E: Failed getting release file http://mirror.invalid/debian/dists/forky/Release"; exit 1'
  expect NoNetworkNamesTheMirror fails_with 1 2 "no network: http://mirror.invalid/debian cannot" "$scripts/setup" base

  fresh
  fake debootstrap 'args=("$@"); mkdir -p "${args[$#-3]}/etc"; kill -TERM $$'
  expect InterruptedSaysRunAgain fails_with 1 2 "stopped: run it again" "$scripts/setup" base
  expect InterruptedLeavesNoRoot test ! -e "$work/cache/forky"

  fresh
  echo "deb http://mirror.invalid/ubuntu noble main" >"$work/apt/sources.list"
  expect NoMirrorSaysHowToNameOne fails_with 1 1 "STRATA_MIRROR=" "$scripts/setup" base
fi

# --- which mirror ---------------------------------------------------------------------------------

mirror_is() {
  run "$scripts/setup" --mirror && [[ $(cat "$work/out") == "$1" ]]
}

fresh
expect MirrorOfListFile mirror_is http://mirror.invalid/debian
cat >"$work/apt/sources.list" <<'LIST'
# deb http://comment.invalid/debian bookworm main
deb http://sec.invalid/debian-security bookworm-security main
deb-src http://source.invalid/debian bookworm main
deb [arch=amd64 signed-by=/some/key.gpg] https://listed.invalid/debian/ bookworm main  # remark
LIST
expect MirrorSkipsSecurityAndSources mirror_is https://listed.invalid/debian

: >"$work/apt/sources.list"
cat >"$work/apt/sources.list.d/debian.sources" <<'SOURCES'
Types: deb
URIs: http://off.invalid/debian
Suites: bookworm
Enabled: no

Types: deb
# A remark inside a stanza.
URIs: http://sec.invalid/debian-security
Suites: bookworm-security
Components: main

Types: deb deb-src
URIs:
  http://first.invalid/debian
  http://second.invalid/debian
Suites: bookworm bookworm-updates
Components: main
SOURCES
expect MirrorOfDeb822File mirror_is http://first.invalid/debian

printf 'Types: deb\nURIs: mirror+file:%s\nSuites: bookworm\n' "$work/apt/mirrors" >"$work/apt/sources.list.d/debian.sources"
echo "http://cloud.invalid/debian/	priority:1" >"$work/apt/mirrors"
expect MirrorOfMirrorList mirror_is http://cloud.invalid/debian
export STRATA_MIRROR=http://named.invalid/debian
expect MirrorOfEnvironmentWins mirror_is http://named.invalid/debian
unset STRATA_MIRROR

rm "$work/apt/sources.list.d/debian.sources"
mkdir -p "$work/cache/forky/etc/apt"
printf '# what it was made from\ndeb http://rooted.invalid/debian forky main\n' >"$work/cache/forky/etc/apt/sources.list"
expect MirrorOfTheRootWhereTheSystemNamesNone mirror_is http://rooted.invalid/debian

help_names_all_sets() {
  local set
  run "$scripts/setup" --help || return
  for set in base test gpu bench train verbs; do grep -q "^ .*\b$set\b" "$work/err" || return; done
}
expect HelpNamesAllSets help_names_all_sets

fresh
cat >"$work/apt/sources.list.d/docker.sources" <<'SOURCES'
Types: deb
URIs: https://containers.invalid/linux/debian
Suites: bookworm
Components: stable
SOURCES
cat >"$work/apt/sources.list.d/database.sources" <<'SOURCES'
Types: deb
URIs: https://database.invalid/debian
Suites: bookworm-pgdg
Components: main
SOURCES
echo "deb [arch=amd64] https://browser.invalid/chrome/deb/ stable main" >"$work/apt/sources.list.d/browser.list"
expect MirrorIsNoOtherVendorsArchive mirror_is http://mirror.invalid/debian

# --- CUDA or Vulkan, on a system of its own -------------------------------------------------------

sources_have() {
  fake apt-cache "echo ' libggml0-backend-cuda | $1 | http://mirror.invalid/debian sid/contrib amd64 Packages'"
}

# installs PACKAGE SET…
installs() {
  local want=$1
  shift
  WORK=$work STRATA_NATIVE=1 STRATA_NVIDIA_DEVICE=${STRATA_NVIDIA_DEVICE_NOW:-/dev/null} run "$scripts/setup" "$@" && grep -qxF -e "$want" "$work/installed"
}

# native VERSION PACKAGE [SET…]: what apt's sources have of the CUDA plug-in, where libggml0 is 0.27.0-1.
native() {
  fresh
  fake dpkg-query 'case $* in *libggml0) echo -n 0.27.0-1 ;; *) sed -e "s/=.*//" -e "s/^/ii  /" "$WORK/installed" 2>/dev/null ;; esac'
  sources_have "$1"
  fake apt-get 'if [[ $1 == install ]]; then shift; for each; do [[ $each == -* ]] || echo "$each" >>"$WORK/installed"; done; fi'
  fake dpkg true
  rm -f "$work/installed"
  local want=$2
  shift 2
  [[ $# -gt 0 ]] || set -- gpu
  installs "$want" "$@"
}

# Vulkan first, then CUDA, then nothing.
cuda_comes_later() {
  native 0.28.0-1 libggml0-backend-vulkan || return
  sources_have 0.27.0-1
  installs libggml0-backend-cuda=0.27.0-1 gpu || return
  installs libggml0-backend-cuda=0.27.0-1 gpu && grep -q "nothing to do" "$work/err"
}
# Vulkan while there is no card, or no driver for it yet; then CUDA.
card_comes_later() {
  STRATA_NVIDIA_DEVICE_NOW=$work/no-card native 0.27.0-1 libggml0-backend-vulkan || return
  installs libggml0-backend-cuda=0.27.0-1 gpu
}
if [[ $(uname -s) == Linux ]]; then
  expect NvidiaGetsCudaOnceTheCardIsThere card_comes_later
  expect NvidiaGetsCudaWhereItFits native 0.27.0-1 libggml0-backend-cuda=0.27.0-1
  expect NvidiaGetsCudaBesideTheVulkanOfTheTests native 0.27.0-1 libggml0-backend-cuda=0.27.0-1 test gpu
  expect NvidiaGetsVulkanWhereCudaIsOfAnotherVersion native 0.28.0-1 libggml0-backend-vulkan
  expect NvidiaGetsCudaOnceItFits cuda_comes_later
fi

# --- scripts/in, here -----------------------------------------------------------------------------

export STRATA_INSIDE=1
status_is() {
  local want=$1 got=0
  shift
  run "$@" || got=$?
  [[ $got == "$want" ]]
}
expect InKeepsTheExitStatus status_is 7 "$scripts/in" sh -c 'exit 7'
expect InKeepsTheSignal status_is 143 "$scripts/in" sh -c 'kill -TERM $$'
cd "$work" || exit 1
expect InKeepsTheFolder status_is 0 "$scripts/in" test -d fakes
expect InKeepsTheArguments status_is 0 "$scripts/in" sh -c '[ "$2" = "a  b" ]' sh x "a  b"
expect InWithoutCommandIsUsage status_is 2 "$scripts/in"

finish
