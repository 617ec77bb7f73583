#!/bin/sh
# Installs Strata from a bundle: curl -fsSL URL/install.sh | sh
#
# Into ~/.local, or as root into /opt/strata and /usr/local/bin. Run again it puts the newest version in the
# place of an older one, which stays beside it as long as programs run it. Needs curl or wget, tar, xz, and
# ssh-keygen of OpenSSH 8.2 or later, which checks the signature.
#
# A copy of this script stays beside the versions, and knows where they came from; `strata self-update` and `strata uninstall`
# start it: install.sh --update           the newest version
#           install.sh --check            whether there is a newer one; installs nothing
#           install.sh --uninstall [--purge] [--yes]  removes all that it made; --purge: keys, ids and models, too
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
# shellcheck disable=SC2010 # links of processes, whose names are numbers
is_used() { ls -l /proc/[0-9]*/exe 2>/dev/null | grep -qF -e " -> $1/"; }

# Sets `folder`, where versions are, `links`, where the program's link is, and `url`.
choose_places() {
  url=${STRATA_DOWNLOAD_URL:-$release_url}
  here=$(cd "$(dirname "$0")" && pwd -P)
  if [ "$action" != install ]; then
    [ -r "$here/origin" ] || die "this script has installed nothing in $here: the installed one has the name install.sh, beside the versions"
    folder=$here
    { read -r links && read -r origin; } <"$here/origin" || die "$here/origin is damaged: run the installer again"
    url=${STRATA_DOWNLOAD_URL:-$origin}
  elif [ -n "${STRATA_PREFIX:-}" ]; then
    links=$STRATA_PREFIX/bin folder=$STRATA_PREFIX/share/strata
  elif [ "$(id -u)" = 0 ]; then
    links=/usr/local/bin folder=/opt/strata
  else
    [ -n "${HOME:-}" ] || die "HOME is not set: choose a place with STRATA_PREFIX"
    links=$HOME/.local/bin folder=$HOME/.local/share/strata
  fi
  url=${url%/}
}

# The services of what is here, as the options of `strata service` call them.
services() {
  for each in "--user ${XDG_CONFIG_HOME:-${HOME:-}/.config}/systemd/user/strata.service" "--system /etc/systemd/system/strata.service"; do
    if grep -qsF -e "\"$links/strata\"" -e "\"$folder/" "${each#* }"; then echo "${each%% *}"; fi
  done
}

# Folders that are not the installer's own, one a line: a person's, and the system's where its service is.
kept() {
  for each in "${XDG_STATE_HOME:-${HOME:-}/.local/state}/strata" "${XDG_CONFIG_HOME:-${HOME:-}/.config}/strata" \
    "${XDG_CACHE_HOME:-${HOME:-}/.cache}/strata/models"; do
    if [ -e "$each" ]; then echo "$each"; fi
  done
  case $(services) in *--system*) ls -d /etc/strata /var/lib/private/strata /var/lib/strata 2>/dev/null || true ;; esac
}

# point VERSION'S-PROGRAM: the link leads there, from one moment to the next.
point() {
  rm -f "$links/.strata.new"
  ln -s "$1" "$links/.strata.new"
  mv -f "$links/.strata.new" "$links/strata"
}

# The services run the version that is linked now; where one does not start with it, all go back.
restart_services() {
  for which in $(services); do
    if [ "$which" = --user ]; then set -- --user; else set --; fi
    say "the service ($which) moves its layers to other nodes, and starts again with $version"
    if systemctl "$@" restart strata.service; then continue; fi
    point "$before"
    systemctl "$@" restart strata.service || true
    die "it did not start: the version before is back ($before); strata service logs says why"
  done
}

uninstall() {
  [ -w "$folder" ] || die "cannot write to $folder: run this as who installed it"
  say "this removes $folder, and what leads there from $links and ${links%/*}/share"
  services | while read -r which; do say "the service is stopped and removed ($which)"; done
  others=$(kept)
  echo "$others" | sed '/^$/d' | while read -r each; do
    if [ -n "$purge" ]; then say "$each is removed"; else say "$each stays (--purge removes it)"; fi
  done
  if [ -z "$yes" ]; then
    printf 'strata: go on? [y/N] '
    read -r answer || answer=
    case $answer in [yY] | [yY][eE][sS]) ;; *) die "nothing was removed" ;; esac
  fi
  for which in $(services); do
    "$links/strata" service uninstall "$which" || die "the service ($which) cannot be removed: nothing else was"
  done
  # A service ends in a moment.
  for _ in 1 2 3; do
    if is_used "$folder"; then sleep 1; fi
  done
  if is_used "$folder"; then die "programs still run from $folder: stop them (strata node ends with Ctrl-C), and run this again"; fi
  for version in "$folder"/*/; do
    (cd "$version" && find share -type f) | while read -r file; do
      link=${links%/*}/share/${file#share/}
      case $(readlink "$link" || true) in "$folder"/*) rm -f "$link" ;; esac
    done
  done
  case $(readlink "$links/strata" || true) in "$folder"/*) rm -f "$links/strata" ;; esac
  if [ -n "$purge" ]; then
    echo "$others" | sed '/^$/d' | while read -r each; do rm -rf "$each"; done
  fi
  rm -rf "${folder:?}"
  say "removed"
}

main() {
  action=install purge='' yes=''
  for word in "$@"; do
    case $word in
      --update) action=update ;;
      --check) action=check ;;
      --uninstall) action=uninstall ;;
      --purge) purge=1 ;;
      --yes) yes=1 ;;
      *) die "$word: --update, --check, or --uninstall with --purge or --yes" ;;
    esac
  done
  choose_places
  if [ "$action" = uninstall ]; then
    uninstall
    return
  fi
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
  # This script as the release has it, for updates to come.
  script=$(sed -n 's/^\([0-9a-f]\{64\}\)  install\.sh$/\1/p' "$work/SHA256SUMS")
  rm -f "$work/install.sh"
  fetch_whole "$url/install.sh" "$work/install.sh" "$script" && [ "$(sha256 "$work/install.sh")" = "$script" ] ||
    die "$url/install.sh is not the one that is signed: nothing was installed"
  if [ -n "$before" ] && [ "${STRATA_ALLOW_OLDER:-}" != 1 ]; then
    has=${before#"$folder/"}
    has=${has%%/*}
    [ "$(printf '%s\n' "$has" "$version" | newest)" = "$version" ] || [ "$has" = "$version" ] ||
      die "$has is here, and $url has only $version: STRATA_ALLOW_OLDER=1 installs it all the same"
  fi
  if [ "$action" = check ]; then
    if [ "$before" = "$folder/$version/bin/strata" ]; then
      say "$version is here, and is the newest"
    else
      say "$version is there: strata self-update installs it"
    fi
    return
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
    point "$folder/$version/bin/strata"
    # The version before stays, and those that programs run.
    for old in "$folder"/*/bin/strata; do
      if [ "$old" = "$folder/$version/bin/strata" ] || [ "$old" = "$before" ] || is_used "${old%/bin/strata}"; then continue; fi
      rm -rf "${old%/bin/strata}"
    done
  fi
  mv -f "$work/install.sh" "$folder/install.sh"
  printf '%s\n' "$links" "$url" >"$folder/origin"
  rm -rf "$work"

  say "installed $version in $folder/$version; $links/strata starts it"
  if [ "$action" = update ]; then
    if [ "$before" = "$folder/$version/bin/strata" ]; then return; fi
    restart_services
    say "nodes that were started by hand run the version before until they are started again"
    return
  fi
  case :$PATH: in
    *:"$links":*) say "try it: strata demo" ;;
    *) say "$links is not in your PATH: export PATH=\"$links:\$PATH\"; then try it: strata demo" ;;
  esac
}

# The whole script has been read when this line has.
main "$@"
