#!/usr/bin/env bash
# What `make demo` runs, after tools/setup.sh VENV demo.
#
#     tools/demo.sh VENV            a shop behind the dashboard, until Ctrl-C; without a terminal: as with --once
#     tools/demo.sh VENV --port N   the same, with the dashboard at this port; otherwise 8080, or a free one
#     tools/demo.sh VENV --once     all examples, one after the other, then the end
#     tools/demo.sh VENV --spark    the same, and downloads pyspark (450 MB) where it is missing
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$1
shift
python=$venv/bin/python
once='' spark='' port=()
while [ $# -gt 0 ]; do
    case $1 in
    --once) once=yes ;;
    --spark) once=yes spark=yes ;;
    --port)
        case ${2-} in '' | *[!0-9]*) echo "demo: --port needs a number" >&2; exit 2 ;; esac
        port=(--port "$2")
        shift
        ;;
    *) echo "demo: unknown option $1; use --once, --spark or --port N" >&2; exit 2 ;;
    esac
    shift
done
if [ -z "$once" ] && [ ! -t 1 ]; then
    echo "demo: the output is not a terminal, so all examples run once (--once); the shop and its dashboard need one"
    once=yes
fi
data=demo-data/$(date +%Y%m%d-%H%M%S)

[ -n "$once" ] || exec "$python" examples/live/demo.py --data "$data" "${port[@]}"

"$python" examples/shop/demo.py --data "$data/shop"
"$python" examples/backend/demo.py --data "$data/backend"
"$python" examples/clicks/demo.py --data "$data/clicks"
wheels=${PENSTOCK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/penstock}/pyspark
if [ -n "$spark" ] || { [ -e "$wheels/.stamp" ] && command -v java >/dev/null; }; then
    tools/install_pyspark.sh "$venv"
fi
if [ -e "$venv/.stamps/pyspark" ]; then
    "$python" examples/clicks/on_spark.py "$data" 2>/dev/null
else
    echo "The same stream on Spark, and a report of it all: make demo ARGS=--spark (downloads pyspark, 450 MB, once)"
fi
