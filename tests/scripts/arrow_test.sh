#!/usr/bin/env bash
# Where scripts/arrow.sh finds Arrow, and how it fetches it, from a folder with a tiny wheel instead of the network.
. "$(dirname -- "${BASH_SOURCE[0]}")/harness.sh"
arrow=$checkout/scripts/arrow.sh
library=pyarrow/libarrow.so.2600

# make_arrow FOLDER VERSION: the files by which Arrow is recognised.
make_arrow() {
  mkdir -p "$1"/pyarrow/include/{arrow/util,parquet/arrow} "$1/pyarrow-26.0.1.dist-info/licenses"
  touch "$1/pyarrow-26.0.1.dist-info/RECORD" "$1/$library" "$1/pyarrow/libparquet.so.2600" "$1/pyarrow/include/parquet/arrow/reader.h"
  echo "#define ARROW_VERSION_STRING \"$2\"" >"$1/pyarrow/include/arrow/util/config.h"
}

# make_index VERSION: an index whose pyarrow has headers of VERSION, and an empty cache.
make_index() {
  make_arrow . "$1"
  mkdir wheels
  python3 - <<'END'
import pathlib, zipfile
with zipfile.ZipFile("wheels/pyarrow-26.0.1-py3-none-any.whl", "w") as wheel:
    for path in pathlib.Path("pyarrow").rglob("*"):
        wheel.write(path)
    wheel.writestr("pyarrow/lib.py", "not kept")
    info = "pyarrow-26.0.1.dist-info"
    wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: pyarrow\nVersion: 26.0.1\n")
    wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(f"{info}/licenses/LICENSE.txt", "a licence")
    wheel.writestr(f"{info}/RECORD", "")
END
  unset TITAN_ARROW
  export TITAN_CACHE="$PWD/the cache" PIP_NO_INDEX=1 PIP_FIND_LINKS=file://${PWD// /%20}/wheels
}

fetched_once() {
  make_index 26.0.1
  expect 0 "$arrow"
  expect_text "55 MB to fetch once"
  local folder
  folder=$("$arrow" 2>said)
  expect_equal "" "$(cat said)"
  [ -e "$folder/$library" ]
  expect_equal "a licence" "$(cat "$folder/pyarrow-26.0.1.dist-info/licenses/LICENSE.txt")"
  [ ! -e "$folder/pyarrow/lib.py" ]
}

named_folder() {
  make_arrow mine 26.0.1
  make_arrow old 25.0.1
  TITAN_ARROW=mine expect 0 "$arrow"
  expect_equal mine "$printed"
  TITAN_ARROW=old expect 64 "$arrow"
  expect_text "holds no complete pyarrow 26.0.1"
}

not_fetched() {
  make_index 26.0.1
  rm -r wheels/*
  expect 69 "$arrow"
  expect_text "TITAN_ARROW=FOLDER"
}

another_version() {
  make_index 26.0.0
  expect 69 "$arrow"
  expect_text "is not Arrow C++ 26.0.1"
}

check "Arrow is fetched once, without Python's part and with its licences" fetched_once
check "a named folder is taken if it is of this version" named_folder
check "what cannot be fetched is said with the ways out" not_fetched
check "a wheel with other headers is refused" another_version
finish
