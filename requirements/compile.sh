#!/usr/bin/env bash
# Regenerates requirements/*.txt from *.in: pinned, hashed, without addresses. Needs `uv`.
# `requirements/compile.sh --upgrade` moves every pin to the newest release.
set -euo pipefail
cd "$(dirname "$0")/.."

command -v uv >/dev/null || { echo "pins: uv is needed (pip install uv)" >&2; exit 1; }

compile() {
    local name=$1
    shift
    echo "pins: requirements/$name.txt"
    uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-header --no-emit-index-url --no-emit-find-links \
        --output-file "requirements/$name.txt" "requirements/$name.in" "$@" >/dev/null
}

# dev is the largest group; the others follow its versions, so that groups share one environment.
compile dev "$@"
for name in base cli spark pyspark demo docs; do
    compile "$name" --constraint requirements/dev.txt "$@"
done
# Peers do not take the newest of everything; they have environments of their own.
compile bench "$@"
compile bench-arq "$@"
# The other end: the lowest versions that the service and the drivers allow.
compile lowest-service --resolution lowest-direct "$@"
compile lowest-drivers --resolution lowest-direct "$@"
compile lowest-frameworks --resolution lowest-direct "$@"
