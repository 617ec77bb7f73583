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

# bundle VERSION [BYTES]: one that prints its version and notes what it does with services, with as many random bytes.
bundle() {
  local name=strata-$1-linux-$processor
  mkdir -p "$work/$name/bin"
  printf '#!/bin/sh\n[ "${1:-}" != service ] || echo "strata $*" >>"%s/calls"\necho strata %s\n' "$work" "$1" >"$work/$name/bin/strata"
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
: >"$www/strata_0.1.0-1_all.deb"
expect "a bundle is signed" sign
expect "and a Debian package beside it" grep -q ' strata_0.1.0-1_all.deb$' "$www/SHA256SUMS"
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

# An installed version updates and removes itself.
own() { env PATH="$work/fakes:$PATH" HOME="$work/home" XDG_CONFIG_HOME= "$@" >"$work/out" 2>"$work/err" </dev/null; }
script=$work/prefix/share/strata/install.sh
unit=$work/home/.config/systemd/user/strata.service
expect "it knows the newest" own sh "$script" --check
expect "and says so" says "0.11.0 is here, and is the newest"
bundle 0.12.0
sign
expect "there is a newer one" own sh "$script" --check
expect "which is said" says "0.12.0 is there: strata self-update installs it"
expect "and not installed" runs 0.11.0
mkdir -p "${unit%/*}"
echo "ExecStart=\"$work/prefix/bin/strata\" \"node\"" >"$unit"
fake systemctl "echo \"systemctl \$*\" >>'$work/calls'"
expect "it updates" own sh "$script" --update
expect "and runs" runs 0.12.0
expect "its service starts again" test "$(cat "$work/calls")" == "systemctl --user restart strata.service"
bundle 0.13.0
sign
fake systemctl 'exit 1'
expect "a service that does not start with it" ! own sh "$script" --update
expect "is said" grep -q "did not start: the version before is back" "$work/err"
expect "and has the version before" runs 0.12.0
fake systemctl true
rm "$www/install.sh"
expect "a release without its installer" ! own sh "$script" --update
expect "is refused" grep -q "install.sh is not the one that is signed: nothing was installed" "$work/err"
sign
expect "a script that installed nothing" ! own sh "$www/install.sh" --update
expect "says so" grep -q "this script has installed nothing" "$work/err"
expect "an unknown word" ! own sh "$script" --upgrade
expect "is refused" grep -q -- "--upgrade: --update, --check, or --uninstall" "$work/err"

mkdir -p "$work/home/.local/state/strata"
expect "nobody says yes" ! own sh "$script" --uninstall
expect "nothing is removed" runs 0.12.0
expect "what would be was said" says "removes $work/prefix/share/strata, and what leads there from $work/prefix/bin"
expect "and what stays" says "/.local/state/strata stays \(--purge removes it\)"
cp "$(command -v sleep)" "$work/prefix/share/strata/0.12.0/bin/sleep"
"$work/prefix/share/strata/0.12.0/bin/sleep" 100 &
sleeping=$!
expect "a program that runs" ! own sh "$script" --uninstall --yes
expect "is named" grep -q "programs still run from .*: stop them" "$work/err"
kill "$sleeping"
echo mine >"$work/prefix/share/man/man1/other.1"
rm "$work/calls"
expect "it is removed" own sh "$script" --uninstall --yes
expect "its service first" test "$(cat "$work/calls")" == "strata service uninstall --user"
left=$(cd "$work/prefix" && find . ! -type d)
expect "and nothing of it is left" test "$left" == ./share/man/man1/other.1
expect "but keys" test -d "$work/home/.local/state/strata"
rm "$unit"
expect "it is installed again" install
expect "and purged" own sh "$script" --uninstall --purge --yes
expect "with keys" test ! -e "$work/home/.local/state/strata"

# Busybox alone, with its wget, and what checks signatures.
mkdir "$work/busybox"
busybox --install -s "$work/busybox"
ln -s "$(command -v ssh-keygen)" "$work/busybox/ssh-keygen"
rm -rf "$work/prefix"
shell=("$work/busybox/sh")
expect "it installs with busybox" install PATH="$work/busybox"
expect "and that runs" runs 0.13.0
expect "it is removed with busybox" env -i PATH="$work/busybox" sh "$work/prefix/share/strata/install.sh" --uninstall --yes >"$work/out" 2>"$work/err"
expect "and gone" test ! -e "$work/prefix/bin/strata"

finish
