#!/usr/bin/env bash
# A bundle of scripts/package runs where nothing else is, and beside a system with libraries of its own.
# Usage: bundle_test.sh PROGRAM
set -uo pipefail

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../scripts" && pwd -P)
program=$1
# shellcheck source-path=SCRIPTDIR source=checks.sh
. "$(dirname "${BASH_SOURCE[0]}")/checks.sh"

run() { "$@" >"$work/out" 2>"$work/err" </dev/null; }
says() { grep -qE -e "$1" "$work/out"; }

place="/opt/My Kölsch strata"
root=$work/root bundle=$work/root$place
mkdir -p "$root"/{proc,dev,tmp,opt}
run env STRATA_INSIDE=1 "$scripts/package" bundle --program "$program" --folder "$bundle"
expect "a bundle is made" test $? == 0
[[ $failed == 0 ]] || finish

# --- a machine that has nothing: no shell, no libc, no user -----------------------------------------

# in_root CMD…: in the bundle's root, with a network of its own that has a loopback interface and no more.
in_root() {
  unshare --mount --net --pid --fork --kill-child bash -c '
    root=$1; shift
    ip link set lo up
    mount -t proc proc "$root/proc"; mount --rbind /dev "$root/dev"; mount -t tmpfs tmpfs "$root/tmp"
    exec chroot "$root" "$@"' in_root "$root" "$@"
}
if [[ $(id -u) == 0 ]] && unshare --mount --net true 2>/dev/null; then
  run in_root "$place/bin/strata" --version
  expect "it starts where nothing is" says "^libllama [0-9]"
  HOME=/tmp run in_root "$place/bin/strata" demo --json
  expect "three nodes run the demo there" says '"text"'
else
  echo "skipped: a root with nothing in it: namespaces are not allowed here"
fi

# --- on a system with libraries of its own ----------------------------------------------------------

export HOME=$work/home
mkdir -p "$HOME"
# start NAME OPTION…: a node; its address is in $address, its API's in $api.
start() {
  rm -f "$work/ready" # that of the node before
  "$bundle/bin/strata" node --open --no-mdns --listen 127.0.0.1:0 --http 127.0.0.1:0 --name "$1" \
    --data-dir "$work/data-$1" "${@:2}" >"$work/ready" 2>>"$work/err" </dev/null &
  children+=($!)
  wait_for test -s "$work/ready"
  address=$(grep -o '"address":"[^"]*"' "$work/ready" | head -n 1 | cut -d '"' -f 4)
  api=$(grep -o '"http":"[^"]*"' "$work/ready" | cut -d '"' -f 4)
}
start guest
start bundled --peer "$address"
joined() { "$bundle/bin/strata" nodes --node "$address" 2>/dev/null | grep -q guest; }
wait_for joined
run "$bundle/bin/strata" load "$bundle/share/strata/strata-demo.gguf" --node "$address" --assign guest=0-2,bundled=3-5
expect "bundled nodes load a model" test $? == 0
run "$bundle/bin/strata" run "Strata demo" "Once upon a time" --max-tokens 8 --node "$address"
expect "and answers" test -s "$work/out"
run curl -fs "$api/v1/chat/completions" -H 'Content-Type: application/json' \
  -d '{"model": "Strata demo", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}'
expect "and chats, by its own Python" says '"assistant"'
pgrep -f "$bundle/lib/strata" >"$work/processes"
expect "nodes have workers" test "$(wc -l <"$work/processes")" -ge 4
while read -r pid; do sed -n 's%^[^/]* \(/.*\)%\1%p' "/proc/$pid/maps"; done <"$work/processes" | sort -u >"$work/mapped"
expect "their libraries are the bundle's" grep -q "^$bundle/lib/libllama" "$work/mapped"
expect "UCX is, too" grep -q "^$bundle/lib/libucp" "$work/mapped"
grep -v -e "^$bundle/" -e "^$work/" -e '^/dev/' -e '^/memfd:' -e '^/SYSV' "$work/mapped" >"$work/out"
expect "and no others are in their memory" test ! -s "$work/out"
expect "they are named" test "$(cat "/proc/${children[0]}/comm")" == strata
run "$bundle/bin/strata" version --json
expect "it names its libraries" says "\"$bundle/lib/libllama.so"
expect "and its plug-ins" says "\"$bundle/lib/ggml/libggml-cpu"
LD_PRELOAD=/nothing.so run "$bundle/bin/strata" --version
expect "a library that others preload is left out" test ! -s "$work/err"
kill "${children[@]}"
wait "${children[@]}" 2>/dev/null
children=()

finish
