#!/usr/bin/env bash
# Every tracked C and C++ file is laid out as .clang-format says. Prints the places that are not; `--fix` rewrites them.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=(--dry-run -Werror)
[[ ${1:-} == --fix ]] && mode=(-i)
git -c safe.directory='*' ls-files -z -- 'src/*.h' 'src/*.cc' 'src/*.c' 'tests/*.h' 'tests/*.cc' 'tests/*.c' \
    'tools/*.h' 'tools/*.cc' 'tools/*.c' 'include/*.h' 'examples/*.c' |
    while IFS= read -r -d '' file; do [[ -e $file ]] && printf '%s\0' "$file"; done |
    xargs -0 -r clang-format "${mode[@]}"
