#!/usr/bin/env bash
# The first minutes on a card: what tells the most comes first, all of it within --seconds; each row that has ended is in
# the files before the next one starts. The last lines say how each row went, and which second command to give.
#   scripts/gpu/first.sh --out FOLDER            on a machine that can build
#   scripts/gpu/first.sh --pack                  prints the path of build/gpu.tar.xz, all that has to travel to one that cannot
#   python3 -m tarfile -e gpu.tar.xz . && bash gpu/scripts/gpu/first.sh --out FOLDER     there: needs python3 with torch 2.11.0
#   --out FOLDER     page.md, results.jsonl, log.txt, dmon.txt (clocks and power), baseline.jsonl and two traces go there
#   --seconds N      for all (400; of a second command 240)      --packed FOLDER  programs of an unpacked gpu.tar.xz
#   --variant NAME   the second command: wrong-numbers (--row ROW of check.sh, --cases of kernels_test), crash (--row ROW),
#                    slow-products, slow-attention, all-well     --only ROWS    those rows alone, by commas
#   --page FILE, --log FILE   instead of those in --out          --commit HASH  where neither git nor the package says it
#   --losses         writes cpu_losses.json, with which the card's are compared
#   --device cpu     without a GPU, with a tiny model, to try the script itself
# Exit codes: 0 all ran and held, 1 something did not, 69 there is no GPU, 75 another of these scripts is running.
here=$(dirname -- "${BASH_SOURCE[0]}") # bench.sh and check.sh source this file
[ "${1:-}" != --pack ] || exec bash "$here/prepare.sh" pack
exec python3 -X utf8 "$here/first.py" "$(basename -- "$0" .sh)" "$@"
