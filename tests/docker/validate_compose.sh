#!/usr/bin/env bash
# Runs the cluster of docker-compose.yml, sends and receives across it, kills the leader of the ZooKeeper ensemble, goes on,
# and counts: every message sent must come back exactly once, to consumers and to Spark. Exit code 0 if so. Needs Docker and
# docker-compose; about two minutes after the image is built. Usage: tests/docker/validate_compose.sh [messages per phase, default 2000]
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly per_phase=${1:-2000}
readonly topic=orders
work=$(mktemp --directory)
readonly work

if docker compose version >/dev/null 2>&1; then compose=(docker compose); else compose=(docker-compose); fi
compose+=(--project-name metaq-validate --profile spark)

say() { printf '%s\n' "$*"; }
fail() { say "FAILED: $*"; exit 1; }
in_client() { "${compose[@]}" exec -T client "$@"; }
mode_of() { "${compose[@]}" exec -T "$1" bash -c 'exec 3<>/dev/tcp/127.0.0.1/2181 && echo srvr >&3 && sed -n "s/^Mode: //p" <&3'; }

clean_up() {
  local code=$?
  if ((code)); then
    cat "$work/log" || true
    "${compose[@]}" logs --no-color --tail 30 || true
  fi
  "${compose[@]}" down --volumes --timeout 20 >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap clean_up EXIT

produce() { # first last
  seq --format 'message-%06.0f' "$1" "$2" | tee -a "$work/sent" | in_client metaq produce --topic "$topic"
}

consume() { # group count; only bodies go to its output
  in_client metaq consume --topic "$topic" --group "$1" --from earliest --count "$2" --timeout 90 > "$work/received-$1" \
    || fail "group $1 did not receive $2 messages"
}

compare() { # group; every message sent so far, exactly once
  sort "$work/sent" > "$work/sent-sorted"
  sort "$work/received-$1" > "$work/received-sorted"
  local lost extra
  lost=$(comm -23 "$work/sent-sorted" "$work/received-sorted" | wc -l)
  extra=$(comm -13 "$work/sent-sorted" "$work/received-sorted" | wc -l)
  say "group $1: sent $(wc -l < "$work/sent"), received $(wc -l < "$work/received-$1"), lost $lost, beyond $extra"
  ((lost == 0 && extra == 0)) || fail "the messages sent and received differ"
}

say "building"
"${compose[@]}" build > "$work/log" 2>&1 || fail "an image does not build"
say "starting"
"${compose[@]}" up --detach --no-build client > "$work/log" 2>&1 || fail "the cluster did not get healthy"

leader=
for server in zookeeper-1 zookeeper-2 zookeeper-3; do
  mode=$(mode_of "$server")
  say "$server: $mode"
  if [[ $mode == leader ]]; then leader=$server; fi
done
[[ -n $leader ]] || fail "the ensemble has no leader"

produce 1 "$per_phase"
consume before "$per_phase"
compare before

say "killing the leader, $leader"
"${compose[@]}" kill -s SIGKILL "$leader" > "$work/log" 2>&1
produce "$((per_phase + 1))" "$((2 * per_phase))"
consume after "$((2 * per_phase))"
compare after

say "counting in Spark"
counted=$("${compose[@]}" run --rm --no-deps -T spark python3 - "$topic" 2> "$work/log" <<'PROGRAM'
import os, sys
from pyspark.sql import SparkSession
from metaq.spark_connector import register

spark = SparkSession.builder.master("local[2]").getOrCreate()
register(spark)
rows = spark.read.format("metaq").options(zookeeper=os.environ["METAQ_ZK"], subscribe=sys.argv[1]).load()
print(rows.count(), rows.select("value").distinct().count())
PROGRAM
) || fail "the job in Spark ended with an error"
say "Spark: rows and distinct payloads: $counted"
[[ $counted == "$((2 * per_phase)) $((2 * per_phase))" ]] || fail "Spark read other messages"

for server in zookeeper-1 zookeeper-2 zookeeper-3; do
  [[ $server == "$leader" ]] || say "$server: $(mode_of "$server")"
done
say "passed"
