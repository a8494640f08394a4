#!/usr/bin/env bash
# Installs pyspark into an environment: its source distribution of 450 MB is built into a wheel once, and kept.
#
#     tools/install_pyspark.sh VENV      after tools/setup.sh VENV dev (or spark)
#
# The wheel lives in the cache outside the repository (PENSTOCK_CACHE, else XDG_CACHE_HOME/penstock, else
# ~/.cache/penstock), under the hash of requirements/pyspark.txt, which also checks the download. Java is asked for
# where Spark starts, not here; with root it is installed if it is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$1
pins=requirements/pyspark.txt
wanted=$(sha256sum "$pins" | cut -d' ' -f1)
stamp=$venv/.stamps/pyspark
wheels=${PENSTOCK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/penstock}/pyspark

command -v java >/dev/null || tools/install_servers.sh java
[ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && exit 0

pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }

if [ "$(cat "$wheels/.stamp" 2>/dev/null)" != "$wanted" ]; then
    rm -rf "$wheels"
    mkdir -p "$wheels"
    for try in 1 2 3; do
        echo "set-up: downloading and building pyspark, 450 MB (try $try)"
        if pip wheel --require-hashes --no-deps --no-build-isolation --wheel-dir "$wheels" -r "$pins"; then
            echo "$wanted" >"$wheels/.stamp"
            break
        fi
        [ "$try" = 3 ] && { echo "set-up failed: pyspark ($pins) could not be downloaded and built" >&2; exit 1; }
        sleep $((try * 2))
    done
fi
echo "set-up: installing pyspark into $venv"
pip install --no-deps --no-index "$wheels"/*.whl
echo "$wanted" >"$stamp"
