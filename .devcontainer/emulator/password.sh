#!/bin/sh
# SQL Server, which the emulator needs, wants a strong password. It is made once, here, and never committed.
set -eu
cd "$(dirname "$0")"
[ -s .env ] && exit 0
umask 077
secret=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
printf 'MSSQL_SA_PASSWORD=Aa1-%s\n' "$secret" > .env
