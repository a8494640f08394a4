#!/usr/bin/env bash
# Brings a Kafka broker's jars into the cache, for tests: Apache Kafka's own Maven artifacts, nothing else.
#
#     tools/install_kafka.sh
#
# The cache is outside the repository (PENSTOCK_CACHE, else XDG_CACHE_HOME/penstock, else ~/.cache/penstock). A stamp
# says that it is complete for this pom; then nothing is done. Without Maven and without root it says so and goes on:
# tests of Kafka are then skipped on a laptop and fail in CI.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${PENSTOCK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/penstock}/kafka
stamp=$cache/.stamp
wanted=$(sha256sum tools/kafka.pom.xml | cut -d' ' -f1)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then exit 0; fi

tools/install_servers.sh maven
if ! command -v mvn >/dev/null; then
    echo "set-up: no Kafka: Maven is not installed (apt-get install maven)" >&2
    exit 0
fi

rm -rf "$cache"
mkdir -p "$cache"
for try in 1 2 3; do
    echo "set-up: downloading Kafka's jars (try $try)"
    if mvn -q -B -f tools/kafka.pom.xml dependency:copy-dependencies \
        -DincludeScope=runtime "-DoutputDirectory=$cache/libs" >"$cache/mvn.log" 2>&1; then
        echo "$wanted" >"$stamp"
        exit 0
    fi
    sleep $((try * 2))
done
echo "set-up failed: Kafka's jars (tools/kafka.pom.xml) could not be downloaded; see $cache/mvn.log" >&2
exit 1
