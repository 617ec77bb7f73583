#!/usr/bin/env bash
# Man pages and completions, as the programs that read them see them. Usage: reference_test.sh PROGRAM
set -uo pipefail

program=$1
# shellcheck source-path=SCRIPTDIR source=checks.sh
. "$(dirname "${BASH_SOURCE[0]}")/checks.sh"

# --- man pages --------------------------------------------------------------------------------------

# is_right FILE: groff has nothing to complain about, and the page has a name.
is_right() {
  groff -Kutf8 -man -Tutf8 -ww -z "$1" >"$work/out" 2>&1
  [[ ! -s $work/out ]] && grep -q '^\.SH NAME$' "$1"
}
"$program" reference man >"$work/strata.1"
expect "the program has a page" is_right "$work/strata.1"
verbs=$("$program" reference verbs)
expect "it names the verbs" grep -qx drain <<<"$verbs"
expect "as the page of the program does" grep -q "^\.B self" "$work/strata.1"
expect "but not the hidden ones" test -z "$(grep -x -e worker -e reference <<<"$verbs")"
for verb in $verbs; do
  "$program" reference man "$verb" >"$work/$verb.1"
  expect "$verb has a page" is_right "$work/$verb.1"
done
groff -Kutf8 -man -Tascii "$work/run.1" | sed 's/\x1b\[[0-9;]*m//g' >"$work/out"
expect "it shows options" grep -q -e '--max-tokens N' "$work/out"
expect "and examples" grep -q 'strata run model.gguf "Once upon a time"' "$work/out"
"$program" reference man key >"$work/out"
expect "actions of a verb are on its page" grep -q '^\.SS strata key show' "$work/out"
expect "another verb is an error" bash -c '! "$1" reference man dance 2>"$2"' _ "$program" "$work/out"

# --- completions ------------------------------------------------------------------------------------

# A cluster of two nodes and two models.
fake strata 'case $2 in nodes) printf "kitchen\nattic room\n" ;; models) printf "Strata demo\nstories\n" ;; esac'
PATH=$work/fakes:$PATH
"$program" reference bash >"$work/bash"
# completes WORD… LAST: what bash offers for the last word, between commas.
completes() {
  COMP_WORDS=(strata "$@")
  COMP_CWORD=$#
  _strata
  (IFS=, && echo "${COMPREPLY[*]}") >"$work/out"
}
# shellcheck disable=SC1091
. "$work/bash"
completes dr
expect "bash completes verbs" grep -qx drain "$work/out"
completes service install --any
expect "a service's node has its options" grep -qx -e --any-model "$work/out"
completes key sh
expect "actions of them" grep -qx show "$work/out"
completes drain --un
expect "options" grep -qx -e --undo "$work/out"
completes drain k
expect "nodes of the cluster" grep -qx kitchen "$work/out"
completes drain a
expect "with a space, too" grep -qxF 'attic\ room' "$work/out"
completes unload ''
expect "and models" grep -qxF 'Strata\ demo,stories' "$work/out"
completes run stories --seed 1 --ctx
expect "options after words" grep -qx -e '--ctx' "$work/out"
for shell in zsh fish; do
  "$program" reference "$shell" >"$work/$shell"
  if command -v "$shell" >/dev/null; then
    "$shell" -n "$work/$shell" >"$work/out" 2>&1
    expect "$shell reads its completions" test $? == 0
  else
    echo "skipped: completions for $shell: it is not installed"
  fi
done
if command -v fish >/dev/null; then
  fish --no-config -c "source $work/fish; complete -C 'strata drain '; complete -C 'strata dr'; complete -C 'strata key '" >"$work/out" 2>&1
  expect "fish completes verbs" grep -q '^drain' "$work/out"
  expect "nodes" grep -q '^kitchen' "$work/out"
  expect "and actions" grep -q '^show' "$work/out"
fi

finish
