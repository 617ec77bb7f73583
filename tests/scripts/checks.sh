# shellcheck shell=bash
# Sourced by the tests of this folder: a folder to work in, fakes, checks that are counted, and the last line.

work=$(mktemp -d)
children=() # processes that end with the test
cleanup() {
  if [[ ${#children[@]} != 0 ]]; then kill "${children[@]}" 2>/dev/null; fi
  rm -rf "$work"
}
trap cleanup EXIT
passed=0 failed=0
mkdir "$work/fakes"

# expect NAME [!] CONDITION…: where it is not as expected, $work/out and $work/err show why.
expect() {
  local name=$1 wanted=0 got=0
  shift
  if [[ $1 == ! ]]; then
    wanted=1
    shift
  fi
  "$@" || got=1
  if [[ $got == "$wanted" ]]; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $name"
    tail -q -n 30 "$work/out" "$work/err" 2>/dev/null | sed 's/^/    /'
  fi
}

# fake NAME SCRIPT: a program, for a PATH that begins with $work/fakes.
fake() {
  printf '#!/usr/bin/env bash\n%s\n' "$2" >"$work/fakes/$1"
  chmod +x "$work/fakes/$1"
}

# wait_for CONDITION…: for 30 s at most.
wait_for() {
  for _ in $(seq 600); do
    if "$@"; then return; fi
    sleep 0.05
  done
  return 1
}

finish() {
  echo "$passed passed, $failed failed"
  exit $((failed > 0))
}
