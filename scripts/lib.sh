# shellcheck shell=bash
# Shared by every script: paths, messages, and how to make and enter the place commands run in. That place is the host itself where libllama is packaged (Debian forky and later, macOS) and a
# Debian forky root on every other Linux. Written for bash 3.2, which is what macOS has.
#
# Environment: STRATA_ROOT_DIR  the forky root (default ~/.cache/strata/forky)
#              STRATA_MIRROR    a Debian mirror, instead of the one in the host's apt sources
#              STRATA_NATIVE    1: never make a root, 0: always make one

strata_repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
strata_me=$(basename "$0")

# With sudo, the files go to the person who called it, so that no sudo is needed afterwards.
strata_home=${HOME:-/root}
if [[ $(id -u) == 0 && -n ${SUDO_USER:-} && ${SUDO_USER} != root ]]; then
  strata_home=$(eval "echo ~$SUDO_USER")
fi
strata_cache=${STRATA_CACHE_DIR:-$strata_home/.cache/strata}
strata_root=${STRATA_ROOT_DIR:-$strata_cache/forky}
strata_log_dir=$strata_cache/log
# Where scripts/setup has put Jinja2 on macOS.
[[ $(uname -s) != Darwin ]] || export PYTHONPATH=$strata_cache/python${PYTHONPATH:+:$PYTHONPATH}

say() { echo "$strata_me: $*" >&2; }
die() {
  say "$*"
  exit 1
}

# --- which place --------------------------------------------------------------------------------

# True where commands run on this system as it is.
strata_native() {
  [[ -n ${STRATA_INSIDE:-} ]] && return 0
  case ${STRATA_NATIVE:-} in 1) return 0 ;; 0) return 1 ;; esac
  [[ $OSTYPE == darwin* ]] && return 0
  [[ -r /etc/os-release ]] || return 1
  (
    # shellcheck disable=SC1091
    . /etc/os-release
    [[ ${ID:-} == debian ]] || exit 1
    case ${VERSION_CODENAME:-} in
      forky | duke | sid) exit 0 ;;
      *) [[ ${VERSION_ID:-0} =~ ^[0-9]+$ && ${VERSION_ID:-0} -ge 14 ]] ;;
    esac
  )
}

# --- package sets -------------------------------------------------------------------------------

# The packages of a set, separated by single spaces:
#   base   for a build and the demo
#   test   for the tests, scripts/check and debugging, on top of base
#   bench  the programs that scripts/bench-* compare with, on top of test
#   train  for scripts/train_demo_model, on top of base
#   package  for scripts/package, on top of base
#   browser  for scripts/page-test and scripts/screenshots, on top of test
#   verbs  for the virtual machine of scripts/test-verbs, on top of test
#   gpu    ggml's Vulkan plug-in; with an NVIDIA card it comes by itself, and the CUDA plug-in instead
#          where the mirror has the one that fits (scripts/setup)
strata_packages() {
  local names
  case $OSTYPE:$1 in
    darwin*:base) names="cmake ninja ccache pkgconf git coreutils curl grpc openssl protobuf abseil libuv cli11
      nlohmann-json blake3 boost ftxui llama.cpp python node" ;;
    darwin*:test) names="googletest google-benchmark llvm shellcheck" ;;
    darwin*:bench | darwin*:gpu | darwin*:package | darwin*:verbs | darwin*:browser) names="" ;;
    darwin*:train) names="pytorch numpy" ;;
    *:base) names="g++ cmake ninja-build ccache pkgconf mold git ca-certificates procps
      libgrpc++-dev libssl-dev libcurl4-openssl-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libabsl-dev libuv1-dev
      libcli11-dev nlohmann-json3-dev libboost-dev libpython3-dev python3 python3-jinja2 libblake3-dev libavahi-core-dev libftxui-dev libucx-dev libllama-dev
      libggml-dev nodejs" ;;
    *:test) names="libgtest-dev libgmock-dev libbenchmark-dev libnlohmann-json-schema-validator-dev clang clang-tidy clang-format
      libclang-rt-dev gdb iproute2 nftables avahi-daemon avahi-utils dbus curl shellcheck
      llama.cpp-tools llama.cpp-tools-extra libggml0-backend-vulkan mesa-vulkan-drivers nginx openssh-client
      xz-utils busybox-static systemd groff-base zsh fish python3-yaml umoci libavahi-compat-libdnssd-dev debhelper lintian rpm ruby" ;;
    *:bench) names="libggml0-backend-rpc ucx-utils" ;;
    # NVIDIA's Vulkan driver, which is the host's, needs libraries of X11 and glvnd even without a display.
    *:gpu) names="libggml0-backend-vulkan libxext6 libglvnd0" ;;
    *:package) names="xz-utils libggml0-backend-vulkan build-essential debhelper umoci" ;;
    *:verbs) names="qemu-system-x86 busybox-static cpio kmod xz-utils rdma-core ibverbs-providers" ;;
    *:browser) names="chromium-headless-shell" ;;
    *:train) names="python3-torch libtorch-dev python3-numpy python3-gguf python3-tokenizers" ;;
  esac
  # shellcheck disable=SC2086
  echo $names
}

# True where the kernel has an NVIDIA card and its driver.
# A container may see any one of several.
strata_nvidia() {
  if [[ -n ${STRATA_NVIDIA_DEVICE:-} ]]; then [[ -e $STRATA_NVIDIA_DEVICE ]]; else compgen -G '/dev/nvidia[0-9]*' >/dev/null; fi
}

# The disk space that a set needs in a root, in MiB.
strata_set_mib() {
  case $1 in base) echo 1200 ;; test) echo 900 ;; bench) echo 1 ;; package) echo 100 ;; verbs) echo 700 ;; browser) echo 500 ;; gpu) echo 1500 ;; train) echo 1500 ;; esac
}

# The file that says a set is installed: it holds the set's package list and is written last.
strata_stamp() {
  local name=$1
  # The stamp of a machine without its NVIDIA card, or the driver, does not count once it has them.
  if [[ $1 == gpu ]] && strata_nvidia; then name=gpu-nvidia; fi
  if strata_native; then echo "$strata_cache/native/$name"; else echo "$strata_root/var/lib/strata/$name"; fi
}

strata_have_set() {
  local stamp
  stamp=$(strata_stamp "$1")
  [[ -r $stamp && $(cat "$stamp") == "$(strata_packages "$1")" ]]
}

# Makes sure that the sets named are there; silent where they are.
strata_need() {
  local set missing=
  [[ -n ${STRATA_INSIDE:-} ]] && return 0
  for set in "$@"; do strata_have_set "$set" || missing="$missing $set"; done
  # shellcheck disable=SC2086
  [[ -z $missing ]] || "$strata_repo/scripts/setup" $missing
}

# --- running things -----------------------------------------------------------------------------

# The folder with the strata program of preset $1.
strata_bin_dir() { echo "$strata_repo/build/$1/bin"; }

# Replaces this shell by a command, run in the place, in the current folder. Signals and exit status
# are the command's own, as this shell becomes the command.
strata_exec() {
  # Relative paths in the cache's keys: a second clone finds what the first one compiled.
  export CCACHE_DIR=${CCACHE_DIR:-$strata_cache/ccache} CCACHE_BASEDIR=$strata_repo CCACHE_NOHASHDIR=1
  export CCACHE_SLOPPINESS=pch_defines,time_macros # With precompiled headers, ccache asks for this.
  # After the release build's folder comes a stand-in that builds `strata` first.
  local path
  path=$(strata_bin_dir release):$strata_repo/scripts/shim
  if strata_native; then
    export PATH=$path:$PATH
    exec "$@"
  fi
  export STRATA_ENTER_PATH=$path
  strata_enter host "$@"
}

strata_need_mounts() {
  unshare --mount true 2>/dev/null ||
    die "this container or chroot does not allow mounts: give it CAP_SYS_ADMIN, or use a Debian forky image"
}

# Replaces this shell by a command in the forky root; $1 is enter.sh's view.
strata_enter() {
  local view=$1
  shift
  local enter=("$BASH" "$strata_repo/scripts/enter.sh" "$view" "$strata_root" "$strata_repo")
  # CUDA makes this device by a program of the host's that the root does not have.
  if [[ -e /dev/nvidiactl && ! -e /dev/nvidia-uvm ]]; then nvidia-modprobe -u -c=0 2>/dev/null || true; fi
  if [[ $(id -u) == 0 ]]; then
    strata_need_mounts
    STRATA_ENTER_IDS="" exec unshare --mount "${enter[@]}" "$@"
  fi
  [[ -r $strata_root/usr/bin/env ]] ||
    die "$strata_root is not readable for $(id -un): run 'sudo scripts/setup' from this account"
  if unshare --user --map-root-user --mount true 2>/dev/null; then
    STRATA_ENTER_IDS="$(id -u):$(id -g)" exec unshare --user --map-root-user --mount "${enter[@]}" "$@"
  fi
  die "this system does not let $(id -un) enter the root (no user namespaces): use 'sudo scripts/$strata_me'"
}

# Runs a command in the place and waits for it.
strata_run() { (strata_exec "$@"); }

# Runs one phase with its output in a log: strata_phase LOG "What it does" CMD…
# One line when it starts, its time when it ends; where it fails, why.
strata_phase() {
  local dir=$strata_log_dir log what=$2 began=$SECONDS status=0
  if [[ $1 == build-* ]]; then dir=$strata_repo/build/log; fi # Each clone has its own.
  log=$dir/$1.log
  shift 2
  mkdir -p "$dir" 2>/dev/null || die "cannot write to $dir: $(strata_why "$dir")"
  say "$what…"
  ("$@") </dev/null >"$log" 2>&1 || status=$?
  if [[ $status != 0 ]]; then
    strata_failed "$log" "$status"
    return "$status"
  fi
  say "… done in $((SECONDS - began)) s"
}

# Says why a phase failed: one clear line where the cause is known, else the end of its log.
strata_failed() {
  local log=$1 status=$2
  if [[ $status -gt 128 && $status != 255 ]]; then
    say "stopped: run it again to go on (log: $log)"
  elif strata_disk_full >/dev/null || grep -qiE "no space left on device|enough free space in" "$log"; then
    say "disk full: free some space$(strata_disk_full | sed 's/^/ below /') and run it again (log: $log)"
  elif grep -qE "$strata_no_network" "$log"; then
    say "no network: ${strata_mirror:-a mirror} cannot be reached: check the connection$(strata_native || echo ", or name another, as 'sudo env STRATA_MIRROR=http://MIRROR/debian scripts/setup'") (log: $log)"
  else
    # ninja goes on for a while after the first failure: that one is shown.
    if grep -q '^FAILED: ' "$log"; then sed -n '/^FAILED: /,$p' "$log" | head -n 25; else tail -n 25 "$log"; fi >&2
    say "failed with status $status (the whole log: $log)"
  fi
}
# The errors of debootstrap, apt and Homebrew without a network.
strata_no_network="Failed getting release file|Couldn't download|Unable to connect to|Could not (connect to|resolve)|Temporary failure resolving|E: Failed to fetch|Invalid Release file, no entry|curl: \\((6|7|28)\\)"

# The first folder existing at or above $1.
strata_existing() {
  local dir=$1
  while [[ ! -d $dir ]]; do dir=$(dirname "$dir"); done
  echo "$dir"
}

strata_free_kib() { df -Pk "$(strata_existing "$1")" | awk 'NR == 2 { print $4 }'; }

# Makes a random model once: strata_random_model FILE MEGABYTES BIN [SHAPE]
strata_random_model() {
  local model=$1 megabytes=$2 bin=$3
  shift 3
  [[ ! -e $model ]] || return 0
  if [[ $(strata_free_kib "$strata_cache") -lt $((megabytes * 1300)) ]]; then
    die "disk full: a random model needs $megabytes MB below $(strata_existing "$strata_cache")"
  fi
  mkdir -p "$(dirname "$model")"
  strata_phase "random-${1:-1b}" "Making a random model (${1:-1b})" strata_run "$bin/random_llama" "$model" "$@"
}

# Prints a folder that is written to and whose disk is full; false where there is none. Some tools
# delete incomplete files, so less than 64 MiB counts as full.
strata_disk_full() {
  local dir
  for dir in "$strata_root" "$strata_cache" "$strata_repo"; do
    if [[ $(strata_free_kib "$dir") -lt 65536 ]]; then
      strata_existing "$dir"
      return
    fi
  done
  return 1
}

# Prints why a folder cannot be written.
strata_why() {
  local dir
  dir=$(strata_existing "$1")
  if [[ ! -w $dir ]]; then
    echo "$dir belongs to someone else"
  else
    echo "its disk has $(strata_free_kib "$dir") kB free"
  fi
}

# Fetches npm packages once: strata_npm FOLDER LOG WAY FILE…
# FOLDER gets copies of the files, package.json among them, and node_modules. WAY: npm's words. False: npm or the
# packages cannot be had; LOG says why. Where there is no npm, Node's corepack fetches the one that package.json
# names. In the place.
strata_npm() {
  local folder=$1 log=$2 way=$3 new npm=(npm)
  shift 3
  [[ ! -d $folder/node_modules ]] || return 0
  mkdir -p "$(dirname "$log")" "$(dirname "$folder")" && new=$(mktemp -d "$folder.XXXXXX") || return
  cp "$@" "$new/"
  command -v npm >/dev/null || npm=(corepack npm)
  # shellcheck disable=SC2086
  if command -v "${npm[0]}" >/dev/null &&
    (cd "$new" && COREPACK_HOME=$strata_cache/corepack COREPACK_ENABLE_DOWNLOAD_PROMPT=0 \
      timeout 300 "${npm[@]}" $way --no-audit --no-fund --fetch-retries=1 --fetch-timeout=30000) </dev/null >"$log" 2>&1; then
    # Where another run was quicker, its packages stay.
    if [[ -e $folder ]]; then rm -rf "$new"; else mv "$new" "$folder"; fi
  else
    rm -rf "$new"
  fi
  [[ -d $folder/node_modules ]]
}

# Runs node with these words where the scripts and packages of tests/page are, against the program $1: Debian's Chromium
# (scripts/setup browser), driven by packages that are fetched once, below ~/.cache/strata/page-test. In the place.
# Exit status 77: something of that is not available here; a line says what.
strata_browse() {
  local program=$1 tests=$strata_repo/tests/page log=$strata_log_dir/page-test.log modules chromium name work status=0
  shift
  for name in chromium-headless-shell chromium; do
    if chromium=$(command -v "$name"); then break; fi
  done
  if [[ -z $chromium ]]; then
    say "skipped: there is no Chromium (scripts/setup browser installs it)"
    return 77
  fi
  modules=$strata_cache/page-test/$(cat "$tests"/package*.json | cksum | cut -d ' ' -f 1)
  if ! command -v node >/dev/null || ! strata_npm "$modules" "$log" 'ci --ignore-scripts' "$tests"/package*.json; then
    say "skipped: what drives the browser cannot be fetched from the npm registry (log: $log)"
    return 77
  fi
  work=$(mktemp -d)
  cp "$tests"/*.mjs "$tests/package.json" "$work/"
  ln -s "$modules/node_modules" "$work/node_modules"
  (cd "$work" && STRATA_CHROMIUM=$chromium STRATA_PROGRAM=$program \
    STRATA_DEMO_MODEL=$strata_repo/models/strata-demo.gguf node "$@") || status=$?
  rm -rf "$work"
  return "$status"
}

# Writes the folder of the packages of node/web into $1/page_modules, for CMake: empty where they cannot be
# had, for then the build goes on without the page. They are fetched once; a failure is tried again after ten minutes.
strata_page_modules() {
  local web=$strata_repo/node/web modules text=
  modules=$strata_cache/page/$(cat "$web"/package*.json | cksum | cut -d ' ' -f 1)
  if [[ ! -d $modules/node_modules && -z $(find "$modules.failed" -mmin -10 2>/dev/null) ]]; then
    # shellcheck disable=SC2016
    if strata_run bash -c '. "$1/scripts/lib.sh" && strata_npm "$2" "$3" "ci --ignore-scripts" "$1"/node/web/package*.json' \
      strata "$strata_repo" "$modules" "$strata_log_dir/page.log"; then
      rm -f "$modules.failed"
    else
      mkdir -p "$(dirname "$modules")" && touch "$modules.failed"
      say "the page's packages cannot be fetched from the npm registry: the program has no page (log: $strata_log_dir/page.log)"
    fi
  fi
  [[ ! -d $modules/node_modules ]] || text=$modules/node_modules
  [[ -e $1/page_modules && $(cat "$1/page_modules") == "$text" ]] || echo "$text" >"$1/page_modules"
}

# Configures and builds preset $1 in the place; further words are targets. Quick where nothing changed.
strata_build() {
  local preset=$1 dir=$strata_repo/build/$1
  shift
  mkdir -p "$dir" || return 1
  if command -v flock >/dev/null; then
    exec 8>"$dir/.lock"
    flock 8
  fi
  cd "$strata_repo" || return 1
  strata_page_modules "$dir" 8>&-
  if [[ ! -e $dir/build.ninja ]] || ! cmp -s CMakePresets.json "$dir/.presets"; then
    # A CMake cache of another folder or compiler cannot be used: makes a new one.
    strata_run cmake --preset "$preset" 8>&- || strata_run cmake --fresh --preset "$preset" 8>&- || return 1
    cp CMakePresets.json "$dir/.presets"
  fi
  local targets=()
  [[ $# -gt 0 ]] && targets=(--target "$@")
  strata_run cmake --build --preset "$preset" ${targets[@]+"${targets[@]}"} 8>&-
}

# The release build; silent where there is nothing to do.
strata_release() {
  local what="Building Strata (the first time takes a few minutes)"
  if [[ -x $(strata_bin_dir release)/strata ]]; then
    what="Bringing the build up to date"
    cmp -s "$strata_repo/CMakePresets.json" "$strata_repo/build/release/.presets" &&
      strata_run ninja -C "$strata_repo/build/release" -n strata 2>/dev/null | grep -q 'no work to do' && return
  fi
  strata_phase build-release "$what" strata_build release strata
}

# Cores to use.
strata_cores() { getconf _NPROCESSORS_ONLN; }
