#!/usr/bin/env bash
# launch_torchrun.sh PROGRAM TORCHRUN: torchrun starts two processes of tests/world/launched.c, which
# become one world, with its store on a port of the command line and on one of its own.
set -euo pipefail

program=$1
torchrun=$2
[[ -x $torchrun ]] || {
  echo 'skipped: torchrun is not installed (PyTorch)'
  exit 77
}

for arguments in "--standalone" "--master-addr 127.0.0.1 --master-port $((20000 + $$ % 10000))"; do
  read -ra words <<<"$arguments"
  said=$(OMP_NUM_THREADS=1 "$torchrun" "${words[@]}" --no-python --nproc-per-node 2 "$program" | sort)
  [[ $said == $'0 of 2 by torchrun, sockets: 3\n1 of 2 by torchrun, sockets: 3' ]] || {
    printf 'torchrun %s: %s\n' "$arguments" "$said" >&2
    exit 1
  }
done
