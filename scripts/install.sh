#!/bin/sh
# Installs Strata from a bundle: curl -fsSL URL/install.sh | sh
#
# Into ~/.local, or as root into /opt/strata and /usr/local/bin. Run again it installs the newest version in
# the place of an older one, which stays beside it for programs that run.
#
# Environment: STRATA_DOWNLOAD_URL  where SHA256SUMS, its signature and the bundles are
#              STRATA_PREFIX        install there: bin/strata and share/strata/VERSION
set -eu

# Who signs releases: a line of allowed signers for ssh-keygen (scripts/package sign writes it).
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
    curl -fsL --retry 3 --connect-timeout 20 -C - -o "$2" "$1"
  else
    wget -q -c -O "$2" "$1"
  fi
}

sha256() {
  if have sha256sum; then sha256sum "$1"; else shasum -a 256 "$1"; fi | cut -d ' ' -f 1
}

main() {
  url=${STRATA_DOWNLOAD_URL:-$release_url}
  url=${url%/}
  [ -n "$url" ] || die "there is no release yet: set STRATA_DOWNLOAD_URL, or clone the repository and run scripts/demo"
  key=${STRATA_RELEASE_KEY:-$release_key}
  [ -n "$key" ] || die "this installer has no key to check a release with: take it from where the release is"

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
    links=$HOME/.local/bin folder=$HOME/.local/share/strata
  fi
  for made in "$links" "$folder"; do
    mkdir -p "$made" 2>/dev/null && [ -w "$made" ] || die "cannot write to $made: choose another place with STRATA_PREFIX"
  done
  work=$folder/.download
  mkdir -p "$work"

  # What there is, and that it is the project's.
  rm -f "$work/SHA256SUMS" "$work/SHA256SUMS.sig"
  for name in SHA256SUMS SHA256SUMS.sig; do
    fetch "$url/$name" "$work/$name" || die "cannot fetch $url/$name: check the address and the connection"
  done
  echo "$key" >"$work/signers"
  ssh-keygen -Y verify -f "$work/signers" -I strata -n strata -s "$work/SHA256SUMS.sig" <"$work/SHA256SUMS" >/dev/null 2>&1 ||
    die "the signature of $url/SHA256SUMS is wrong: nothing was installed"
  line=$(grep -E "^[0-9a-f]{64}  strata-[0-9][0-9A-Za-z.+-]*-linux-$processor\.tar\.xz\$" "$work/SHA256SUMS" | tail -n 1)
  [ -n "$line" ] || die "$url has no bundle for Linux on $processor"
  sum=${line%%  *}
  archive=${line##*  }
  version=${archive#strata-}
  version=${version%-linux-*}

  if [ -x "$folder/$version/bin/strata" ]; then
    say "version $version is here already"
  else
    free=$(df -Pk "$folder" | awk 'NR == 2 { print int($4 / 1024) }')
    [ "$free" -ge 250 ] || die "$folder has $free MiB free, and 250 are needed: nothing was installed"
    say "fetching $archive…"
    fetch "$url/$archive" "$work/$archive" || {
      # A server that has no more than is here already refuses to go on.
      [ -s "$work/$archive" ] && [ "$(sha256 "$work/$archive")" = "$sum" ] ||
        die "$url/$archive was not fetched whole: run this again, and it goes on where it stopped"
    }
    if [ "$(sha256 "$work/$archive")" != "$sum" ]; then
      rm -f "$work/$archive"
      die "$archive has a wrong checksum: nothing was installed; run this again"
    fi
    rm -rf "$work/new"
    mkdir "$work/new"
    tar -C "$work/new" -xJf "$work/$archive" || {
      rm -rf "$work/new"
      die "$archive cannot be unpacked in $folder: nothing was installed"
    }
    rm -rf "${folder:?}/$version"
    mv "$work/new/${archive%.tar.xz}" "$folder/$version"
  fi
  before=$(readlink "$links/strata" 2>/dev/null || true)
  ln -s "$folder/$version/bin/strata" "$links/.strata.new.$$"
  mv -f "$links/.strata.new.$$" "$links/strata"
  rm -rf "$work"
  # The version before stays, for nodes that run; older ones go.
  for old in "$folder"/*/bin/strata; do
    case $old in
      "$folder/$version/bin/strata" | "$before") ;;
      *) rm -rf "${old%/bin/strata}" ;;
    esac
  done

  say "installed $version in $folder/$version; $links/strata starts it"
  case :$PATH: in
    *:"$links":*) say "try it: strata demo" ;;
    *) say "$links is not in your PATH: export PATH=\"$links:\$PATH\"; then try it: strata demo" ;;
  esac
}

# The whole script has been read when this line has.
main "$@"
