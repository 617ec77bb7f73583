#!/usr/bin/env bash
# scripts/install.sh from a web server, with bundles that hold a script: what goes right, and that what goes wrong says
# one clear line and changes nothing. Usage: install_test.sh
set -uo pipefail

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../scripts" && pwd -P)
# shellcheck source-path=SCRIPTDIR source=checks.sh
. "$(dirname "${BASH_SOURCE[0]}")/checks.sh"
server=
www=$work/www
mkdir -p "$www" "$work/logs"
processor=$(uname -m)

# bundle VERSION [BYTES]: one that prints its version, with as many random bytes.
bundle() {
  local name=strata-$1-linux-$processor
  mkdir -p "$work/$name/bin"
  printf '#!/bin/sh\necho strata %s\n' "$1" >"$work/$name/bin/strata"
  chmod +x "$work/$name/bin/strata"
  mkdir -p "$work/$name/share/man/man1"
  echo "$1" >"$work/$name/share/man/man1/strata.1"
  head -c "${2:-1000}" /dev/urandom >"$work/$name/filling"
  tar -C "$work" -cJf "$www/$name.tar.xz" "$name"
}
sign() { "$scripts/package" sign --key "$work/key" --folder "$www" "$@" >/dev/null 2>"$work/err"; }

stop_serving() {
  if [[ -n $server ]]; then
    kill "$server"
    wait "$server" 2>/dev/null
  fi
  server=
}
served() { curl -fs "http://127.0.0.1:$port/SHA256SUMS" -o /dev/null; }
# serve [BYTES-PER-SECOND]
serve() {
  stop_serving
  cat >"$work/nginx.conf" <<CONF
worker_processes 1;
pid $work/logs/pid;
error_log $work/logs/error;
events {}
http {
  access_log $work/logs/access;
  client_body_temp_path $work/logs; proxy_temp_path $work/logs; fastcgi_temp_path $work/logs;
  uwsgi_temp_path $work/logs; scgi_temp_path $work/logs;
  server { listen 127.0.0.1:$port; root $www; limit_rate ${1:-0}; }
}
CONF
  nginx -c "$work/nginx.conf" -g 'daemon off; user root;' 2>"$work/err" &
  server=$!
  children+=("$server")
  wait_for served
}

# install [NAME=VALUE…]: as `curl … | sh` does; in a folder of its own, with fakes before the system's tools.
install() {
  env PATH="$work/fakes:$PATH" STRATA_PREFIX="$work/prefix" STRATA_DOWNLOAD_URL="http://127.0.0.1:$port/" "$@" \
    "${shell[@]}" <"$www/install.sh" >"$work/out" 2>"$work/err"
}
shell=(sh)
# fails_with PATTERN [NAME=VALUE…]: one line, and nothing is installed.
fails_with() {
  local pattern=$1
  shift
  ! install "$@" && [[ $(wc -l <"$work/err") == 1 ]] && grep -qE -e "$pattern" "$work/err" && [[ ! -e $work/prefix/bin/strata ]]
}
runs() { [[ $("$work/prefix/bin/strata") == "strata $1" ]]; }
says() { grep -qE -e "$1" "$work/out"; }

ssh-keygen -q -t ed25519 -N '' -f "$work/key"
ssh-keygen -q -t ed25519 -N '' -f "$work/other"
bundle 0.1.0
expect "a bundle is signed" sign
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
serve

# --- what goes wrong --------------------------------------------------------------------------------

expect "no address" fails_with "no release yet: set STRATA_DOWNLOAD_URL" STRATA_DOWNLOAD_URL=
expect "no server" fails_with "cannot fetch .*/SHA256SUMS: check" STRATA_DOWNLOAD_URL=http://127.0.0.1:1
expect "nothing there" fails_with "cannot fetch .*/none/SHA256SUMS" STRATA_DOWNLOAD_URL="http://127.0.0.1:$port/none"
cp "$www/install.sh" "$work/install.sh"
cp "$scripts/install.sh" "$www/install.sh"
expect "an installer without a key" fails_with "no key to check a release with"
cp "$work/install.sh" "$www/install.sh"
fake uname 'case $1 in -s) echo Linux ;; *) echo riscv64 ;; esac'
expect "another processor" fails_with "no bundle for Linux on riscv64"
fake uname 'case $1 in -s) echo Plan9 ;; *) echo x86_64 ;; esac'
expect "another system" fails_with "no bundle for Plan9 on x86_64"
rm "$work/fakes/uname"
fake df 'echo Filesystem; echo disk 0 0 1024 100% /'
expect "a full disk" fails_with "1 MiB free, and 250 are needed"
rm "$work/fakes/df"
touch "$work/file"
expect "no permission" fails_with "cannot write to .*/file/bin: choose another place" STRATA_PREFIX="$work/file"
fake tar 'exit 2'
expect "an archive that cannot be unpacked" fails_with "cannot be unpacked in .*: nothing was installed"
fake tar 'echo "tar: No space left on device" >&2; exit 2'
expect "a disk that fills" fails_with "unpacked in .* \(tar: No space left on device\): nothing"
rm "$work/fakes/tar"
fake ssh-keygen 'echo "unknown option -- Y" >&2; exit 1'
expect "an old ssh-keygen" fails_with "install OpenSSH 8.2 or later"
rm "$work/fakes/ssh-keygen"
mkdir -p "$work/prefix/share/strata/.download/lock"
expect "another installer" fails_with "another installer is at work here"
rmdir "$work/prefix/share/strata/.download/lock"
fake id 'echo 1000'
expect "no home" fails_with "HOME is not set" STRATA_PREFIX= HOME=
rm "$work/fakes/id"
mkdir -p "$work/prefix/bin"
ln -s /bin/sh "$work/prefix/bin/strata"
expect "another's link is there" ! install
expect "which is said" grep -q "is not this installer's: move it away" "$work/err"
expect "and left" test "$(readlink "$work/prefix/bin/strata")" == /bin/sh
rm "$work/prefix/bin/strata"
cp "$www/SHA256SUMS" "$work/SHA256SUMS"
echo "$(printf '%064d' 0)  strata-9.9.9-linux-$processor.tar.xz" >>"$www/SHA256SUMS"
expect "a list that nobody signed" fails_with "signature of .* is wrong: nothing was installed"
cp "$work/SHA256SUMS" "$www/SHA256SUMS"
cp "$www/SHA256SUMS.sig" "$work/SHA256SUMS.sig"
rm "$www/SHA256SUMS.sig"
ssh-keygen -q -Y sign -f "$work/other" -n strata "$www/SHA256SUMS"
expect "another's signature" fails_with "signature of .* is wrong"
mv "$work/SHA256SUMS.sig" "$www/SHA256SUMS.sig"
cp "$www/strata-0.1.0-linux-$processor.tar.xz" "$work/archive"
printf x | dd of="$www/strata-0.1.0-linux-$processor.tar.xz" bs=1 seek=100 conv=notrunc status=none
rm -r "$work/prefix"
expect "a changed archive" fails_with "wrong checksum: nothing was installed"
cp "$work/archive" "$www/strata-0.1.0-linux-$processor.tar.xz"
printf '#!/bin/sh\nexit 126\n' >"$work/strata-0.1.0-linux-$processor/bin/strata"
tar -C "$work" -cJf "$www/strata-0.1.0-linux-$processor.tar.xz" "strata-0.1.0-linux-$processor"
sign
expect "a program that does not start" fails_with "does not start in .*: nothing was installed"
bundle 0.1.0
sign
left=$(find "$work/prefix" -name new -o -name lock)
expect "nothing is left behind" test -z "$left"

# --- what goes right --------------------------------------------------------------------------------

expect "it installs" install
expect "it says what to do next" says "not in your PATH.*strata demo"
expect "what it installed runs" runs 0.1.0
expect "it installs twice" install PATH="$work/prefix/bin:$PATH"
expect "and says so" says "0.1.0 is here already"
expect "the place is in the PATH" says "try it: strata demo"
expect "it still runs" runs 0.1.0
rm "$work/prefix/share/strata/0.1.0/bin/strata"
expect "a damaged one" install
expect "is installed anew" runs 0.1.0

# Cut off in the middle, and gone on.
bundle 0.9.0 3000000
sign
serve 500k
install &
installing=$!
partial() { [[ -n $(find "$work/prefix/share/strata" -path "*/.download/*" -size +200k) ]]; }
expect "the download begins" wait_for partial
stop_serving
expect "cut off it fails" ! wait "$installing"
expect "it says how to go on" grep -q "run this again, and it goes on where it stopped" "$work/err"
expect "what was there runs" runs 0.1.0
serve
expect "it goes on" install
expect "where it stopped" grep -q '" 206 ' "$work/logs/access"
expect "of two the newer one runs" runs 0.9.0
expect "the one before stays for who runs it" test -x "$work/prefix/share/strata/0.1.0/bin/strata"
expect "it installs a third time" install
expect "and it still stays" test -x "$work/prefix/share/strata/0.1.0/bin/strata"

# Versions are numbers; an older one is not installed in silence.
bundle 0.10.0
sign --url "http://127.0.0.1:$port"
expect "an installer that knows its address" install STRATA_DOWNLOAD_URL=
expect "0.10 is newer than 0.9" runs 0.10.0
expect "its man page is there" grep -qx 0.10.0 "$work/prefix/share/man/man1/strata.1"
expect "what is older goes" test ! -e "$work/prefix/share/strata/0.1.0"
rm "$www/strata-0.10.0"*
sign
expect "an older one" ! install
expect "is refused" grep -q "0.10.0 is here, and .* has only 0.9.0: STRATA_ALLOW_OLDER=1" "$work/err"
expect "but for who allows it" install STRATA_ALLOW_OLDER=1
expect "and then runs" runs 0.9.0

# A server that does not go on where a download stopped.
stop_serving
bundle 0.11.0 200000
sign
sum=$(sed -n 's/  strata-0\.11\..*//p' "$www/SHA256SUMS")
mkdir -p "$work/prefix/share/strata/.download"
head -c 1000 "$www/strata-0.11.0-linux-$processor.tar.xz" >"$work/prefix/share/strata/.download/$sum"
python3 -m http.server -b 127.0.0.1 -d "$www" "$port" >"$work/logs/python" 2>&1 &
server=$!
children+=("$server")
wait_for served
expect "a server without ranges" install
expect "is begun with anew" runs 0.11.0
serve

# A person's own folder, with a space in its name.
fake id 'echo 1000'
expect "it installs at home" install STRATA_PREFIX= HOME="$work/my home"
rm "$work/fakes/id"
expect "and runs there" test "$("$work/my home/.local/bin/strata")" == "strata 0.11.0"
(cd "$work" && install STRATA_PREFIX=relative)
expect "it installs in a folder named from here" test "$("$work/relative/bin/strata")" == "strata 0.11.0"
expect "an address that is none" ! "$scripts/package" sign --key "$work/key" --folder "$www" --url "x';id;'" 2>"$work/err"

# Busybox alone, with its wget, and what checks signatures.
mkdir "$work/busybox"
busybox --install -s "$work/busybox"
ln -s "$(command -v ssh-keygen)" "$work/busybox/ssh-keygen"
rm -rf "$work/prefix"
shell=("$work/busybox/sh")
expect "it installs with busybox" install PATH="$work/busybox"
expect "and that runs" runs 0.11.0

finish
