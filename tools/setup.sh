#!/usr/bin/env bash
# Makes a virtual environment with one pinned group of requirements and penstock itself (editable).
#
#     tools/setup.sh VENV GROUP        for instance: tools/setup.sh .venv dev
#
# Safe to run again: a stamp inside the environment holds a hash of everything that decides its content,
# and nothing is installed while it still matches. PYTHON=... chooses the interpreter of a new environment.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$1
group=$2
pins=requirements/$group.txt
oldest=3.11

fail() { echo "set-up failed: $*" >&2; exit 1; }

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

can_make_venv() { "$1" -c 'import venv, ensurepip' >/dev/null 2>&1; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "Python $oldest or newer is needed (apt-get install python3, or PYTHON=/path/to/python3 make ...)"
}

install_venv_module() {
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "set-up: installing python3-venv"
        apt-get update -qq >/dev/null 2>&1 || true
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >/dev/null 2>&1 || true
    fi
    can_make_venv "$1" || fail "$1 has no venv module; install it with: apt-get install python3-venv"
}

make_venv() {
    local python
    python=$(find_python)
    can_make_venv "$python" || install_venv_module "$python"
    echo "set-up: $venv with $("$python" --version)"
    rm -rf "$venv"
    "$python" -m venv "$venv" || fail "$python -m venv $venv"
    mkdir "$venv/.stamps"
    pwd -P >"$venv/.stamps/root"
}

# Runs a command up to three times; downloads fail for reasons that pass.
three_tries() {
    local try
    for try in 1 2 3; do
        "$@" && return
        [ "$try" = 3 ] || { echo "set-up: try $try failed, trying again" >&2; sleep $((try * 2)); }
    done
    return 1
}

pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }

[ -f "$pins" ] || fail "there is no $pins"

# An environment does not survive being moved, nor the removal of its interpreter.
if [ "$(cat "$venv/.stamps/root" 2>/dev/null)" != "$(pwd -P)" ] || ! new_enough "$venv/bin/python"; then
    make_venv
fi

stamp=$venv/.stamps/$group
key=$(cat "$pins" pyproject.toml src/pyspark_penstock.py tools/setup.sh | sha256sum | cut -d' ' -f1)
[ "$(cat "$stamp" 2>/dev/null)" = "$key" ] && exit 0

echo "set-up: installing $pins into $venv"
# The pins are complete, so pip has nothing to resolve: left to it, a new release of a package that somebody asks for
# with an extra (psycopg[pool]) would end the installation.
three_tries pip install --no-deps --require-hashes -r "$pins" || fail "group '$group' ($pins) could not be installed"
pip install --no-deps --no-build-isolation -e . || fail "penstock itself could not be installed into $venv"
echo "$key" >"$stamp"
