#!/usr/bin/env bash
# Installs the servers that the tests talk to, and the browser that they look at pages with, from the packages of the
# distribution, without starting any of them.
#
#     tools/install_servers.sh postgres pgbouncer mysql redis zookeeper
#
# Safe to run again: what is there is left alone. Without root it names in one line what is missing, and goes on:
# tests of a missing server are skipped on a laptop and fail in CI.
set -euo pipefail

declare -A packages=([postgres]=postgresql [pgbouncer]=pgbouncer [mysql]=mariadb-server [redis]=redis-server [zookeeper]=zookeeper
    [maven]=maven [java]=openjdk-17-jre-headless [chromium]=chromium)

there() {
    case $1 in
    postgres) ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 ;;
    pgbouncer) [ -x /usr/sbin/pgbouncer ] ;;
    mysql) command -v mariadbd >/dev/null || [ -x /usr/sbin/mariadbd ] ;;
    redis) command -v redis-server >/dev/null ;;
    zookeeper) [ -e /usr/share/java/zookeeper.jar ] ;;
    maven) command -v mvn >/dev/null ;;
    java) command -v java >/dev/null ;;
    chromium) command -v chromium >/dev/null ;;
    *) echo "unknown server: $1" >&2; exit 2 ;;
    esac
}

missing=()
for name in "$@"; do
    there "$name" || missing+=("${packages[$name]}")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "set-up: not installed, and not installable without root: ${missing[*]}" >&2
    exit 0
fi

# While this file says 101, no package may start its service; a file of somebody else's is put back.
policy=/usr/sbin/policy-rc.d
kept=
if [ -e "$policy" ]; then
    kept=$(mktemp)
    cp -p "$policy" "$kept"
fi
restore() {
    rm -f "$policy"
    if [ -n "$kept" ]; then mv "$kept" "$policy"; fi
}
trap restore EXIT
printf '#!/bin/sh\nexit 101\n' >"$policy"
chmod 755 "$policy"

for try in 1 2 3; do
    echo "set-up: installing ${missing[*]} (try $try)"
    apt-get update -qq >/dev/null 2>&1 || true
    if DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; then
        exit 0
    fi
    sleep $((try * 2))
done
echo "set-up failed: apt-get install ${missing[*]}" >&2
exit 1
