#!/usr/bin/env bash
# Runs all fuzz targets that lie beside this script for a time, several at once:
#
#   bash run_all.sh SECONDS JOBS OUT
#
# OUT gets summary.txt (executions, coverage, findings), a log of each job, the texts that were found
# (corpus) and those that made a target stop (findings). The exit status is 1 if there are any.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
seconds=${1:?seconds to run} jobs=${2:?jobs at once} out=${3:?folder for what is found}
mkdir -p "$out"
out=$(cd "$out" && pwd)
targets=(bam contigs depths dump paf reads)
export UBSAN_OPTIONS=print_stacktrace=1
export ASAN_OPTIONS=allocator_may_return_null=1
# the search for leaks needs ptrace, which not every machine allows
"$here/paf" -runs=1 >/dev/null 2>&1 || ASAN_OPTIONS+=:detect_leaks=0

job() { # TARGET NUMBER: fuzzes until the time is over, on after each finding
  local target=$1 log=$out/$1.$2.log left
  mkdir -p "$out/corpus/$target" "$out/findings/$target"
  : >"$log"
  while left=$((stop - $(date +%s))) && [ "$left" -gt 0 ]; do
    "$here/$target" -max_total_time="$left" -max_len=4096 -timeout=20 -rss_limit_mb=3000 \
      -use_value_profile=$(($2 / ${#targets[@]} % 2)) -reload=30 -print_final_stats=1 -artifact_prefix="$out/findings/$target/" \
      "$out/corpus/$target" "$here/seeds/$target" >>"$log" 2>&1 || sleep 1
  done
}

stop=$(($(date +%s) + seconds))
count=$((jobs > ${#targets[@]} ? jobs : ${#targets[@]}))
for ((i = 0; i < count; ++i)); do job "${targets[i % ${#targets[@]}]}" "$i" & done
wait

{
  echo "target executions edges features texts findings"
  for target in "${targets[@]}"; do
    executions=$(awk '/^stat::number_of_executed_units/ { n += $2 } END { print n + 0 }' \
      "$out/$target".*.log)
    best=$(grep -hoE 'cov: [0-9]+ ft: [0-9]+' "$out/$target".*.log |
      awk '{ if ($2 > c) c = $2; if ($4 > f) f = $4 } END { print c + 0, f + 0 }')
    texts=$(find "$out/corpus/$target" -type f | wc -l)
    findings=$(find "$out/findings/$target" -type f | wc -l)
    starts=$(grep -c '^INFO: Seed:' "$out/$target".*.log | awk -F: '{ n += $NF } END { print n + 0 }')
    [ "$starts" -gt 0 ] || findings="did_not_start"
    echo "$target $executions $best $texts $findings"
  done
  grep -hE 'not so:|SUMMARY:|runtime error:' "$out"/*.log | sort | uniq -c | sort -rn | head -n 50
} | tee "$out/summary.txt"
[ -z "$(find "$out/findings" -type f)" ] && ! grep -q did_not_start "$out/summary.txt"
