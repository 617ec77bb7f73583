#!/usr/bin/env bash
# Becomes a command inside the forky root: enter.sh VIEW ROOT REPO CMD…
#
# Called by lib.sh in a mount namespace of its own, so no mount outlives the command. Every step is an
# exec: the command keeps the caller's process id, terminal, signals and exit status.
#   VIEW host   /usr, /etc and /var are the root's, everything else is the host's: the command sees the
#               same files under the same names as its caller, but Debian forky's programs
#   VIEW root   the root alone with /dev and /proc, for apt
set -euo pipefail
view=$1 root=$2 repo=$3
shift 3

fail() {
  echo "$(basename "$0"): $*" >&2
  exit 125
}

if [[ $view == root ]]; then
  mount --rbind /dev "$root/dev"
  mount --rbind /proc "$root/proc"
  mount -t tmpfs tmpfs "$root/run"
  : >>"$root/etc/resolv.conf"
  mount --bind "$(realpath /etc/resolv.conf)" "$root/etc/resolv.conf"
  exec chroot "$root" /usr/bin/env -i -C / "HOME=/root" "TERM=${TERM:-dumb}" LC_ALL=C.UTF-8 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive \
    "http_proxy=${http_proxy:-}" "https_proxy=${https_proxy:-${http_proxy:-}}" "no_proxy=${no_proxy:-}" "$@"
fi

cwd=$(pwd -P)
new=$root/mnt
mount -t tmpfs -o mode=755 tmpfs "$new"
for dir in usr etc var; do
  mkdir "$new/$dir"
  mount --rbind "$root/$dir" "$new/$dir"
done
for link in bin sbin lib lib32 lib64 libx32; do
  if [[ -L $root/$link ]]; then ln -s "$(readlink "$root/$link")" "$new/$link"; fi
done
for dir in /*; do
  name=${dir#/}
  if [[ -e $new/$name || -L $new/$name ]]; then continue; fi
  case $name in boot | lost+found | libx32 | lib* | .old) continue ;; esac
  if [[ -L $dir ]]; then
    ln -s "$(readlink "$dir")" "$new/$name"
  elif [[ -d $dir ]]; then
    mkdir "$new/$name"
    # Folders that the caller may not read (/lost+found of a second disk) are left empty.
    mount --rbind "$dir" "$new/$name" 2>/dev/null || true
  fi
done
mount --rbind /var/tmp "$new/var/tmp"
# Users, groups and host names are the host's.
for file in resolv.conf hosts passwd group; do
  if [[ -e /etc/$file && -e $new/etc/$file ]]; then mount --bind "$(realpath "/etc/$file")" "$new/etc/$file"; fi
done
# Folders of the caller's that lie below the three that are the root's.
for dir in "$repo" "$cwd" "${HOME:-/}"; do
  case $dir in
    /usr | /etc | /var | /var/tmp* ) continue ;;
    /usr/* | /etc/* | /var/*)
      if [[ ! -e $new$dir ]] || [[ ! $dir -ef $new$dir ]]; then
        mkdir -p "$new$dir" 2>/dev/null || fail "$dir cannot be shown inside $root: run 'sudo mkdir -p $root$dir' once"
        mount --rbind "$dir" "$new$dir"
      fi
      ;;
  esac
done

# The driver of an NVIDIA card belongs to the host's kernel, so its libraries are the host's, too: one by
# one in a folder of their own, so that no other library of the host is found there.
driver=
if [[ -e /dev/nvidiactl ]]; then
  mkdir "$new/.driver"
  while read -r lib; do
    file=$new/.driver/$(basename "$lib")
    [[ -e $file ]] || { : >"$file" && mount --bind "$(realpath "$lib")" "$file"; } || true
  done < <(PATH=$PATH:/usr/sbin:/sbin ldconfig -p | sed -n 's%.*(libc6,.* => \(.*/lib\(cuda\|nvidia-[a-z0-9-]*\|GLX_nvidia\|EGL_nvidia\)\.so\..*\)$%\1%p')
  for file in /usr/share/vulkan/icd.d/nvidia_icd*.json /etc/vulkan/icd.d/nvidia_icd*.json; do
    if [[ -r $file ]]; then cp "$file" "$new/.driver/nvidia_icd.json"; fi
  done
  # Without an X server the driver's Vulkan is in the library for EGL alone.
  if [[ -e $new/.driver/nvidia_icd.json ]]; then
    sed 's/libGLX_nvidia/libEGL_nvidia/' "$new/.driver/nvidia_icd.json" >"$new/.driver/nvidia_icd_egl.json"
  fi
  driver=/.driver
fi

mkdir "$new/.old"
pivot_root "$new" "$new/.old"
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
umount -l /.old
rmdir /.old
cd "$cwd"

export PATH=${STRATA_ENTER_PATH:+$STRATA_ENTER_PATH:}$PATH STRATA_INSIDE=1
# A locale that the root has; nothing that points the host's compilers or libraries into it.
export LC_ALL=C.UTF-8
if [[ -n $driver ]]; then
  if [[ -e $driver/nvidia_icd.json ]]; then export VK_ADD_DRIVER_FILES=$driver/nvidia_icd.json:$driver/nvidia_icd_egl.json; fi
fi
ids=${STRATA_ENTER_IDS:-}
unset STRATA_ENTER_PATH STRATA_ENTER_IDS LANGUAGE LD_LIBRARY_PATH LIBRARY_PATH LD_PRELOAD PYTHONPATH PYTHONHOME \
  PKG_CONFIG_PATH CMAKE_PREFIX_PATH CC CXX CFLAGS CXXFLAGS LDFLAGS CPATH \
  C_INCLUDE_PATH CPLUS_INCLUDE_PATH
if [[ -n $driver ]]; then export LD_LIBRARY_PATH=$driver; fi
if [[ -n $ids ]]; then
  exec unshare --user --map-user="${ids%:*}" --map-group="${ids#*:}" -- "$@"
fi
exec "$@"
