#!/usr/bin/env bash
# Brings jars into the cache, for tests: Apache's own Maven artifacts, nothing else.
#
#     tools/install_kafka.sh                  a Kafka broker
#     tools/install_kafka.sh spark-kafka      Spark's own Kafka connector
#     tools/install_kafka.sh hdfs             an HDFS in one process
#
# The cache is outside the repository (PENSTOCK_CACHE, else XDG_CACHE_HOME/penstock, else ~/.cache/penstock). A stamp
# says that it is complete for this pom; then nothing is done. Without Maven and without root it says so and goes on:
# tests that need them are then skipped on a laptop and fail in CI.
set -euo pipefail
cd "$(dirname "$0")/.."

what=${1:-kafka}
pom=tools/$what.pom.xml
cache=${PENSTOCK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/penstock}/$what
stamp=$cache/.stamp
wanted=$(sha256sum "$pom" | cut -d' ' -f1)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then exit 0; fi

tools/install_servers.sh maven
if ! command -v mvn >/dev/null; then
    echo "set-up: no $what: Maven is not installed (apt-get install maven)" >&2
    exit 0
fi

rm -rf "$cache"
mkdir -p "$cache"
for try in 1 2 3; do
    echo "set-up: downloading the jars of $what (try $try)"
    if mvn -q -B -f "$pom" dependency:copy-dependencies \
        -DincludeScope=runtime "-DoutputDirectory=$cache/libs" >"$cache/mvn.log" 2>&1; then
        echo "$wanted" >"$stamp"
        exit 0
    fi
    sleep $((try * 2))
done
echo "set-up failed: the jars of $what ($pom) could not be downloaded; see $cache/mvn.log" >&2
exit 1
