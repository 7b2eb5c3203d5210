#!/usr/bin/env bash
# check_loaded.sh PROGRAM...: runs each program on the CPU and on a GPU and looks at what the dynamic
# loader loaded: the CUDA module in the second run, nothing of CUDA in the first.
set -euo pipefail

loaded() { # PROGRAM: what of CUDA it loads
  LD_DEBUG=files "$1" 2>&1 >/dev/null | grep -oE 'file=[^ ]*lib(evenkeel_cuda|cuda|cudart|cublas|cublasLt|nccl)\.so' | sort -u || true
}

unset EVENKEEL_TEST_DEVICES
for program in "$@"; do
  on_cpu=$(loaded "$program")
  on_gpu=$(EVENKEEL_TEST_DEVICES=cuda:0 loaded "$program")
  if [[ -n $on_cpu ]]; then
    printf 'check_loaded: on the CPU %s loads %s\n' "$program" "$on_cpu" >&2
    exit 1
  fi
  if [[ $on_gpu != *libevenkeel_cuda* ]]; then
    printf 'check_loaded: on a GPU %s does not load the module, so this test sees nothing\n' "$program" >&2
    exit 1
  fi
done
