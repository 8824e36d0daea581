#!/usr/bin/env bash
# Prints a Python interpreter for the tests that compare with Python: torch 2.11.0, tests/reference/requirements.txt.
# TITAN_TEST_PYTHON names one of your own; else a virtual environment in the cache, one per content of that file, made
# when missing. It borrows torch from the folder that scripts/libtorch.sh gives, so torch is not fetched twice.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

readonly requirements=$TITAN_ROOT/tests/reference/requirements.txt
readonly alone=$TITAN_ROOT/tests/reference/requirements_alone.txt
readonly files=$TITAN_ROOT/tests/reference/requirements_files.txt
# The packages that torch itself names, without NVIDIA's and triton.
readonly torch_requirements='typing-extensions filelock sympy networkx jinja2 fsspec'

check_own_python() {
  "$TITAN_TEST_PYTHON" -c 'import torch; assert torch.__version__.split("+")[0] == "2.11.0"' >&2 ||
    fail 69 "TITAN_TEST_PYTHON=$TITAN_TEST_PYTHON cannot import torch 2.11.0; its message is above" \
      "Unset it to have an environment made."
}

# The folder to borrow torch from: it must hold the extension module of this very Python.
borrowed_site() {
  local site suffix
  suffix=$(python3 -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
  site=$("$TITAN_ROOT/scripts/libtorch.sh" --cpu)
  if [ ! -e "$site/torch/_C$suffix" ]; then
    say "$site holds the torch of another Python than $(command -v python3): another is used for the tests"
    site=$(TITAN_LIBTORCH='' "$TITAN_ROOT/scripts/libtorch.sh" --cpu)
  fi
  printf '%s' "$site"
}

# make_environment FOLDER SITE
make_environment() {
  local folder=$1 site=$2 partial=$1.partial packages
  say "Making the tests' Python environment in $folder"
  rm -rf "$partial"
  python3 -m venv "$partial" >&2 || fail 69 "python3 -m venv failed; its message is above" "Run scripts/setup.sh."
  packages=$("$partial/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  # torch and NVIDIA's libraries are borrowed, so their lines are left out.
  grep -viE '^(torch|triton|nvidia-[a-z0-9-]*)([^a-z0-9_-]|$)' "$requirements" >"$partial/requirements.txt" || true
  # shellcheck disable=SC2086  # a list of words
  "$partial/bin/python" -m pip --quiet --disable-pip-version-check --no-cache-dir install --only-binary :all: \
    -r "$partial/requirements.txt" $torch_requirements >&2 ||
    fail 69 "the Python packages that the tests compare with could not be installed; pip's message is above" \
      "They are listed in $requirements." "TITAN_TEST_PYTHON=INTERPRETER names a Python that has them and torch 2.11.0."
  "$partial/bin/python" -m pip --quiet --disable-pip-version-check --no-cache-dir install --only-binary :all: --no-deps \
    -r "$alone" >&2 || fail 69 "the Python packages of $alone could not be installed; pip's message is above"
  "$partial/bin/python" -m pip --quiet --disable-pip-version-check --no-cache-dir install --only-binary :all: --no-deps \
    --target "$partial/files" -r "$files" >&2 ||
    fail 69 "the Python packages of $files could not be installed; pip's message is above"
  printf '%s\n' "$site" >"$packages/titan_torch.pth"
  python3 "$TITAN_ROOT/scripts/stand_ins.py" "$site" "$packages" >&2
  "$partial/bin/python" -c 'import torch; torch.ones(2).sum()' >&2 ||
    fail 69 "torch from $site cannot be imported; the message is above"
  # Only bin/python is used, through which an environment works at any place.
  rm -rf "$folder"
  mv -T "$partial" "$folder"
}

if [ -n "${TITAN_TEST_PYTHON:-}" ]; then
  check_own_python
  printf '%s\n' "$TITAN_TEST_PYTHON"
  exit 0
fi
[ -e "$requirements" ] || fail 69 "$requirements is missing"
site=$(borrowed_site)
key=$({ cat "$requirements" "$alone" "$files" "$TITAN_ROOT/scripts/stand_ins.py" "$TITAN_ROOT/scripts/test_python.sh"
  python3 -VV; printf '%s' "$site"; } | sha256sum | cut -c 1-12)
environment=$TITAN_CACHE/test-python-$key
if [ ! -x "$environment/bin/python" ]; then
  mkdir -p "$TITAN_CACHE"
  exec 9>"$TITAN_CACHE/test-python.lock"
  flock 9
  [ -x "$environment/bin/python" ] || make_environment "$environment" "$site"
fi
printf '%s\n' "$environment/bin/python"
