#!/usr/bin/env bash
# What `make demo` runs, after tools/setup.sh VENV demo.
#
#     tools/demo.sh VENV            a shop behind the dashboard, until Ctrl-C; without a terminal: as with --once
#     tools/demo.sh VENV --once     all examples, one after the other, then the end
#     tools/demo.sh VENV --spark    the same, and downloads pyspark (450 MB) where it is missing
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$1
shift
python=$venv/bin/python
once='' spark=''
for option in "$@"; do
    case $option in
    --once) once=yes ;;
    --spark) once=yes spark=yes ;;
    *) echo "demo: unknown option $option; use --once or --spark" >&2; exit 2 ;;
    esac
done
[ -t 1 ] || once=yes
data=demo-data/$(date +%Y%m%d-%H%M%S)

[ -n "$once" ] || exec "$python" examples/live/demo.py --data "$data"

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
