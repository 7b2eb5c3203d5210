# shellcheck shell=bash
# Sourced by run: what is on the machine, what is missing, and what can be used for it. Leaves probe.md.
# shellcheck disable=SC2154 # name, python, toolkit are run's

missing() { # WHAT WHAT-FOR
  printf '| %s | missing | %s |\n' "$1" "$2" >>"$name/probe.md"
}

found() { # WHAT WHERE
  printf '| %s | there | %s |\n' "$1" "${2:-}" >>"$name/probe.md"
}

probe_tool() { # COMMAND WHAT-FOR
  if command -v "$1" >/dev/null; then found "$1" "$(command -v "$1")"; else missing "$1" "$2"; fi
}

# Prints where the toolkit is, if it has cuBLASLt.
cublas_of_toolkit() {
  local nvcc root
  nvcc=$(command -v "${CUDACXX:-nvcc}") || return 1
  root=$(cd "$(dirname "$(readlink -f "$nvcc")")/.." && pwd)
  ! compgen -G "$root/include/cublasLt.h" >/dev/null &&
    ! compgen -G "$root/targets/*/include/cublasLt.h" >/dev/null || printf '%s' "$root"
}

# Prints where pip has it. Its libraries lack the names that a linker looks for: $toolkit gets them.
cublas_of_pip() {
  local site library
  site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' 2>/dev/null) || return 1
  for site in "$site"/nvidia/cu1[2-9] "$site/nvidia/cublas"; do
    library=$(compgen -G "$site/lib/libcublasLt.so.[0-9]*" | head -n 1) || continue
    [[ -e $site/include/cublasLt.h ]] || continue
    mkdir -p "$toolkit/include" "$toolkit/lib"
    ln -sf "$site"/include/cublas*.h "$toolkit/include/"
    ln -sf "$site"/lib/libcublas*.so.* "$toolkit/lib/"
    ln -sf "$library" "$toolkit/lib/libcublasLt.so"
    printf '%s' "$site"
    return
  done
  return 1
}

use_prefix() { # FOLDER: CMake looks there too
  [[ :${CMAKE_PREFIX_PATH-}: == *":$1:"* ]] || export CMAKE_PREFIX_PATH=$1${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}
}

# In the first second of every call, since what it finds is used by the others.
part_probe() {
  local what where torch
  printf '| | | |\n|---|---|---|\n' >"$name/probe.md"
  if packages_find_nvcc && command -v "${CUDACXX:-nvcc}" >/dev/null; then
    [[ -z ${CUDACXX-} ]] || PATH=$PATH:$(dirname "$CUDACXX") # compute-sanitizer lies beside it
    found nvcc "$("${CUDACXX:-nvcc}" --version | grep release)"
  else
    missing nvcc 'the build'
  fi
  where=$(smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit --format=csv,noheader)
  if [[ -n $where ]]; then found nvidia-smi "$where"; else missing nvidia-smi 'clocks beside the figures'; fi
  for what in check jansson; do
    packages_have "$what" || [[ ! -e carried/include/$what.h ]] || use_prefix "$PWD/carried"
    if packages_carried "$what.h"; then
      found "$what" 'a carried copy'
    elif packages_have "$what"; then
      found "$what"
    else
      missing "$what" "${packages_purpose[$what]}; to carry it: CONTRIBUTING.md"
    fi
  done
  where=$(cublas_of_toolkit) || true
  if [[ -n $where ]]; then
    found cublasLt "$where"
  elif where=$(cublas_of_pip); then
    use_prefix "$toolkit"
    export CPATH=$toolkit/include${CPATH:+:$CPATH}
    found cublasLt "$where, of pip"
  else
    missing cublasLt 'the build: neither the toolkit nor the nvidia folders of pip have it'
  fi
  probe_tool cmake 'the build'
  probe_tool gcc 'the build'
  probe_tool ncu 'counters by kernel'
  probe_tool compute-sanitizer 'the part sanitizer'
  cat "$name/probe.md"
  # Takes some seconds, so the others are said first.
  torch=$("$python" -c 'import torch; print(torch.__version__, torch.cuda.is_available())' 2>/dev/null) || torch=''
  if [[ $torch == *True ]]; then
    found PyTorch "${torch% True}"
  else
    missing PyTorch "the comparison with it${torch:+: $torch: it sees no GPU}"
  fi
  tail -n 1 "$name/probe.md"
}

is_missing() {
  grep -q "^| $1 | missing" "$name/probe.md"
}
