#!/bin/sh
# Installs Strata from a bundle: curl -fsSL URL/install.sh | sh
#
# Into ~/.local, or as root into /opt/strata and /usr/local/bin. Run again it puts the newest version in the
# place of an older one, which stays beside it as long as programs run it. Needs curl or wget, tar, xz, and
# ssh-keygen of OpenSSH 8.2 or later, which checks the signature.
#
# Environment: STRATA_DOWNLOAD_URL  where SHA256SUMS, its signature and the bundles are
#              STRATA_PREFIX        install there: bin/strata and share/strata/VERSION
#              STRATA_ALLOW_OLDER   1: also a version that is older than the one that is here
set -eu
umask 022

# The signers of releases, as ssh-keygen wants them, and their place; `scripts/package sign` writes both lines.
release_key=''
release_url=''

say() { echo "strata: $*"; }
die() {
  say "$*" >&2
  exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# fetch URL FILE: goes on where FILE ends.
fetch() {
  if have curl; then
    curl -fsL --retry 3 --connect-timeout 20 --speed-limit 1000 --speed-time 60 -C - -o "$2" "$1"
  else
    wget -q -c -T 60 -O "$2" "$1"
  fi
}

# fetch_whole URL FILE SUM: true where FILE has that checksum in the end. What is there of it is kept where the
# connection was cut, and fetched anew where the server does not go on (curl's 22 and 33, wget's 8).
fetch_whole() {
  begun=
  [ ! -s "$2" ] || begun=1
  status=0
  fetch "$1" "$2" || status=$?
  if [ "$status" != 0 ] && [ "$(sha256 "$2")" != "$3" ]; then
    case $begun-$status in
      1-22 | 1-33 | 1-8) ;;
      *) return 1 ;;
    esac
    rm -f "$2"
    fetch "$1" "$2" || return 1
  fi
}

sha256() {
  if [ ! -f "$1" ]; then return; fi
  if have sha256sum; then sha256sum <"$1"; else shasum -a 256 <"$1"; fi | cut -d ' ' -f 1
}

# The newest of the versions on stdin, one a line.
newest() { awk -F '[.+-]' '{ printf "%09d%09d%09d %s\n", $1, $2, $3, $0 }' | sort | tail -n 1 | cut -d ' ' -f 2; }

# True where a process runs from that folder.
is_used() {
  for process in /proc/[0-9]*; do
    case $(readlink "$process/exe" 2>/dev/null) in "$1"/*) return 0 ;; esac
  done
  return 1
}

main() {
  url=${STRATA_DOWNLOAD_URL:-$release_url}
  url=${url%/}
  [ -n "$url" ] || die "there is no release yet: set STRATA_DOWNLOAD_URL, or clone the repository and run scripts/demo"
  [ -n "$release_key" ] || die "this installer has no key to check a release with: take it from where the release is"

  system=$(uname -s)
  processor=$(uname -m)
  case $system-$processor in
    Linux-x86_64 | Linux-aarch64) ;;
    *) die "there is no bundle for $system on $processor: clone the repository and run scripts/demo" ;;
  esac
  have curl || have wget || die "needs curl or wget: install one of them, and run this again"
  have ssh-keygen || die "needs ssh-keygen to check the release's signature: install openssh-client, and run this again"
  { have tar && have xz; } || die "needs tar and xz: install xz-utils (xz), and run this again"

  if [ -n "${STRATA_PREFIX:-}" ]; then
    links=$STRATA_PREFIX/bin folder=$STRATA_PREFIX/share/strata
  elif [ "$(id -u)" = 0 ]; then
    links=/usr/local/bin folder=/opt/strata
  else
    [ -n "${HOME:-}" ] || die "HOME is not set: choose a place with STRATA_PREFIX"
    links=$HOME/.local/bin folder=$HOME/.local/share/strata
  fi
  for made in "$links" "$folder"; do
    { mkdir -p "$made" 2>/dev/null && [ -w "$made" ]; } || die "cannot write to $made: choose another place with STRATA_PREFIX"
  done
  links=$(cd "$links" && pwd -P)
  folder=$(cd "$folder" && pwd -P)
  before=
  if [ -e "$links/strata" ] || [ -L "$links/strata" ]; then
    before=$(readlink "$links/strata" || true)
    case $before in
      "$folder"/*) ;;
      *) die "$links/strata is not this installer's: move it away, or choose another place with STRATA_PREFIX" ;;
    esac
  fi
  work=$folder/.download
  mkdir -p "$work"
  mkdir "$work/lock" 2>/dev/null || die "another installer is at work here; if none is, remove $work/lock"
  trap 'rm -rf "$work/lock" "$work/new"' EXIT
  trap 'exit 130' INT TERM HUP

  # The list of bundles, and the check that the project signed it.
  rm -f "$work"/SHA256SUMS*
  for name in SHA256SUMS SHA256SUMS.sig; do
    fetch "$url/$name" "$work/$name" || die "cannot fetch $url/$name: check the address and the connection"
  done
  echo "$release_key" >"$work/signers"
  ssh-keygen -Y verify -f "$work/signers" -I strata -n strata -s "$work/SHA256SUMS.sig" \
    <"$work/SHA256SUMS" >"$work/said" 2>&1 || {
    if grep -qE '(unknown|illegal) option' "$work/said"; then
      die "this ssh-keygen checks no signatures: install OpenSSH 8.2 or later, and run this again"
    fi
    die "the signature of $url/SHA256SUMS is wrong: nothing was installed"
  }
  version=$(sed -n "s/^[0-9a-f]\{64\}  strata-\([0-9][0-9A-Za-z.+-]*\)-linux-$processor\.tar\.xz\$/\1/p" "$work/SHA256SUMS" | newest)
  [ -n "$version" ] || die "$url has no bundle for Linux on $processor"
  name=strata-$version-linux-$processor
  sum=$(sed -n "s/^\([0-9a-f]\{64\}\)  $name\.tar\.xz\$/\1/p" "$work/SHA256SUMS" | tail -n 1)
  if [ -n "$before" ] && [ "${STRATA_ALLOW_OLDER:-}" != 1 ]; then
    here=${before#"$folder/"}
    here=${here%%/*}
    [ "$(printf '%s\n' "$here" "$version" | newest)" = "$version" ] || [ "$here" = "$version" ] ||
      die "$here is here, and $url has only $version: STRATA_ALLOW_OLDER=1 installs it all the same"
  fi

  if "$folder/$version/bin/strata" --version >/dev/null 2>&1; then
    say "version $version is here already"
  else
    free=$(df -Pk "$folder" | awk 'NR == 2 { print int($4 / 1024) }')
    [ "$free" -ge 250 ] || die "$folder has $free MiB free, and 250 are needed: nothing was installed"
    say "fetching $name.tar.xz…"
    archive=$work/$sum
    fetch_whole "$url/$name.tar.xz" "$archive" "$sum" ||
      die "$url/$name.tar.xz was not fetched whole: run this again, and it goes on where it stopped"
    if [ "$(sha256 "$archive")" != "$sum" ]; then
      rm -f "$archive"
      die "$name.tar.xz has a wrong checksum: nothing was installed; run this again"
    fi
    rm -rf "$work/new"
    mkdir "$work/new"
    tar -C "$work/new" -xJf "$archive" 2>"$work/said" ||
      die "$name.tar.xz cannot be unpacked in $folder ($(tail -n 1 "$work/said")): nothing was installed"
    "$work/new/$name/bin/strata" --version >"$work/said" 2>&1 ||
      die "strata does not start in $folder ($(tail -n 1 "$work/said")): nothing was installed"
    rm -rf "${folder:?}/$version"
    mv "$work/new/$name" "$folder/$version"
  fi
  # Man pages and completions, but in the place of nobody's own.
  shares=${links%/*}/share
  (cd "$folder/$version" && find share/man share/bash-completion share/zsh share/fish -type f 2>/dev/null || true) | while read -r file; do
    link=$shares/${file#share/}
    if [ -e "$link" ] && [ ! -L "$link" ]; then continue; fi
    mkdir -p "${link%/*}" && ln -sf "$folder/$version/$file" "$link" || say "$link cannot be made"
  done
  if [ "$before" != "$folder/$version/bin/strata" ]; then
    rm -f "$links/.strata.new"
    ln -s "$folder/$version/bin/strata" "$links/.strata.new"
    mv -f "$links/.strata.new" "$links/strata"
    # The version before stays, and those that programs run.
    for old in "$folder"/*/bin/strata; do
      if [ "$old" = "$folder/$version/bin/strata" ] || [ "$old" = "$before" ] || is_used "${old%/bin/strata}"; then continue; fi
      rm -rf "${old%/bin/strata}"
    done
  fi
  rm -rf "$work"

  say "installed $version in $folder/$version; $links/strata starts it"
  case :$PATH: in
    *:"$links":*) say "try it: strata demo" ;;
    *) say "$links is not in your PATH: export PATH=\"$links:\$PATH\"; then try it: strata demo" ;;
  esac
}

# The whole script has been read when this line has.
main "$@"
