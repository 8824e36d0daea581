#!/usr/bin/env bash
# The wheel and the self-contained bundle on fresh Debian 12 and 13 systems, which have no compiler.
# With --full only: makes both systems with debootstrap, as root, from this system's package source.
. "$(dirname -- "${BASH_SOURCE[0]}")/harness.sh"

readonly build=$checkout/build/release
readonly words=(--training.steps=3 --metrics.log_freq=1)

# losses FOLDER: of the steps in its metrics.
losses() { grep -o '"loss":[^,]*' "$1/metrics.jsonl"; }

# What the checks install and compare with.
make_packages() {
  expect 0 "$checkout/scripts/wheel.sh" --allow-newer
  wheel=${printed##*$'\n'}
  expect 0 "$checkout/scripts/bundle.sh" --allow-newer --self-contained
  bundle=${printed##*$'\n'}
  [ -e "$wheel" ] && [ -e "$bundle" ]
  printf '%s\n%s\n' "$wheel" "$bundle" >"$all_scratch/packages"
  expect 0 "$build/titan_train" "$checkout/configs/debug_model.toml" "${words[@]}" --job.dump_folder=built
  losses built >"$all_scratch/losses"
}

# in_system COMMAND...: in the folder $system, without this system's environment. Mounts end with the command.
in_system() {
  # shellcheck disable=SC2016  # expanded by the inner shell
  system=$system site=$site unshare --mount --propagation private bash -c '
    set -e
    mount --bind /proc "$system/proc"
    mount --bind "$site" "$system/opt/torch"
    chroot "$system" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"' in_system "$@"
}

# trains_on SUITE
trains_on() {
  local source site wheel bundle package system
  source=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources | head -n 1)
  site=$(sed -n 's/^TITAN_LIBTORCH_FOUND:INTERNAL=//p' "$build/CMakeCache.txt")
  { read -r wheel; read -r bundle; } <"$all_scratch/packages"
  system=$(mktemp -d /var/tmp/titan-debian-XXXXXX) # debootstrap takes no path with spaces
  # shellcheck disable=SC2064  # the folder of now
  trap "rm -rf --one-file-system '$system'" EXIT
  expect 0 debootstrap --variant=minbase --include=python3,python3-venv "$1" "$system" "$source"
  chmod 755 "$system"
  mkdir "$system/opt/torch"
  # shellcheck disable=SC2016  # expanded by the inner shell
  expect 0 in_system sh -c 'for compiler in cc gcc g++ clang; do ! command -v $compiler || exit 1; done'

  cp "$wheel" "$system/opt/"
  expect 0 in_system python3 -m venv /opt/environment
  echo /opt/torch >"$(echo "$system"/opt/environment/lib/python3*/site-packages)/torch.pth"
  expect 0 in_system /opt/environment/bin/pip install --no-index --no-deps "/opt/${wheel##*/}"
  package=$(in_system sh -c 'echo /opt/environment/lib/python3*/site-packages/titan_train')
  expect 0 in_system /opt/environment/bin/titan_train "$package/configs/debug_model.toml" "${words[@]}" --job.dump_folder=/opt/of_wheel
  expect_equal "$(cat "$all_scratch/losses")" "$(losses "$system/opt/of_wheel")"

  # The bundle needs no torch.
  rm -r "$system/opt/environment"
  mkdir empty "$system/opt/bundle"
  site=$PWD/empty
  tar --zstd -xf "$bundle" -C "$system/opt/bundle" --strip-components 1
  expect 0 in_system /opt/bundle/titan_train /opt/bundle/configs/debug_model.toml "${words[@]}" --job.dump_folder=/opt/of_bundle
  expect_equal "$(cat "$all_scratch/losses")" "$(losses "$system/opt/of_bundle")"
}

on_debian_12() { trains_on bookworm; }
on_debian_13() { trains_on trixie; }

if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then
  skip "wheel and bundle train on Debian 12 and 13" "it needs root and debootstrap"
elif [ ! -x "$build/titan_train" ]; then
  skip "wheel and bundle train on Debian 12 and 13" "titan_train is not built"
else
  check "wheel.sh and bundle.sh --self-contained make packages" make_packages
  check "wheel and bundle train on Debian 12 as the built program does" on_debian_12
  check "wheel and bundle train on Debian 13 as the built program does" on_debian_13
fi
finish
