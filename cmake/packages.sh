# shellcheck shell=bash
# Sourced by bench/run and tests/run: finds out what is missing on this machine and asks apt for it.
#
#   packages_need WHAT...      what a script needs, by the names below; sets packages_left_out, one
#                              line for each thing that is not there
#   packages_have WHAT         true if it is there
#   packages_cuda_for_tests GPU
#   packages_build PRESET [TARGET...]
#   packages_progress          shows on stderr how far the build is whose output it reads
#   packages_jobs              how many jobs to build with (EVENKEEL_JOBS, else the cores)
#
# Nothing is installed when nothing is missing. Where packages cannot be installed (no apt, no
# network, no rights) the script says so within a minute, says what is left out, and goes on as long
# as there are CMake, make or ninja, and a C compiler.

# WHAT -> Debian package, and what it is for.
declare -A packages_debian=(
  [cmake]=cmake
  [ninja]=ninja-build
  [make]=make
  [gcc]=gcc
  [libc]=libc6-dev
  [g++]=g++
  [clang]=clang
  [fuzzer]=libclang-rt-dev
  [lld]=lld
  [pkg-config]=pkg-config
  [onednn]=libdnnl-dev
  [jansson]=libjansson-dev
  [xxhash]=libxxhash-dev
  [check]=check
  [argp]=libc6-dev
  [chromium]=chromium
  [venv]=python3-venv
  [python-headers]=python3-dev
  [poppler]=poppler-utils
  [groff]=groff-base
  [doxygen]=doxygen
  [openmpi]=libopenmpi-dev
  [mpich]=libmpich-dev
  [mpirun.openmpi]=openmpi-bin
  [mpirun.mpich]=mpich
)
# What goes missing with it.
declare -A packages_purpose=(
  [cmake]="the build"
  [ninja]="the build"
  [make]="the build"
  [gcc]="the build with gcc"
  [libc]="the C library's headers"
  [g++]="oneDNN's matrix products on the CPU, the tests of the headers from C++ and the CUDA module"
  [clang]="the build with a second compiler; gcc makes the one with AddressSanitizer"
  [fuzzer]="the search with random inputs, tests/fuzz"
  [lld]="the quicker linker of tests"
  [pkg-config]="the test of evenkeel.pc"
  [onednn]="oneDNN's matrix products on the CPU, for which the library's own are taken"
  [jansson]="evenkeel-bench and its tests"
  [xxhash]="files of tensors"
  [check]="the unit tests, all programs check_*"
  [argp]="evenkeel-bench and its tests"
  [chromium]="the test of reports in a browser"
  [venv]="the environment that bench/peers makes for PyTorch 2"
  [python-headers]="what torch.compile makes: the compiled forms of bench/peers"
  [poppler]="the test of reports in print"
  [groff]="the test of man pages"
  [doxygen]="the reference of all functions"
  [openmpi]="the module for Open MPI and its tests"
  [mpich]="the module for MPICH and its tests"
  [mpirun.openmpi]="the tests with processes that Open MPI starts"
  [mpirun.mpich]="the tests with processes that MPICH starts"
)
# What CONTRIBUTING.md tells how to carry to a machine without packages.
declare -A packages_carriable=([onednn]=1 [jansson]=1 [check]=1)
packages_left_out=()

# On stderr: standard output is for results.
packages_say() {
  printf '[setup] %s\n' "$*" >&2
}

packages_compiler() {
  local compiler
  for compiler in "${CC-}" gcc cc clang; do
    if [[ -n $compiler ]] && command -v "$compiler" >/dev/null; then
      printf '%s' "$compiler"
      return 0
    fi
  done
  return 1
}

# True if a one-line C program that uses HEADER and links LIBRARY... builds.
packages_compiles() {
  local header=$1 compiler
  shift
  compiler=$(packages_compiler) || return 1
  printf '#include <%s>\nint main(void) { return 0; }\n' "$header" |
    "$compiler" -x c - -o /dev/null "$@" 2>/dev/null
}

# True if a folder of CMAKE_PREFIX_PATH, where CMake looks as well, has HEADER.
packages_carried() {
  local prefix
  local -a prefixes
  IFS=: read -ra prefixes <<<"${CMAKE_PREFIX_PATH-}"
  for prefix in ${prefixes[@]+"${prefixes[@]}"}; do
    [[ -e $prefix/include/$1 ]] && return 0
  done
  return 1
}

# Of the python that bench/peers takes.
packages_python() {
  local python=${PYTHON:-python3}
  [[ -z ${PEERS_VENV-} ]] || python=$PEERS_VENV/bin/python
  command -v "$python" >/dev/null && "$python" -c "$1" 2>/dev/null
}

# True if clang is there and makes a program out of a harness: its runtime is a package of its own.
packages_fuzzes() {
  command -v clang >/dev/null &&
    printf 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return !d && n; }\n' |
    clang -x c - -o /dev/null -fsanitize=fuzzer,address,undefined 2>/dev/null
}

packages_have() {
  case $1 in
    onednn) packages_carried oneapi/dnnl/dnnl.h || packages_compiles oneapi/dnnl/dnnl.h -ldnnl ;;
    jansson | xxhash | check)
      packages_carried "$1.h" || packages_compiles "$1.h" ||
        { command -v pkg-config >/dev/null && pkg-config --exists "$1"; }
      ;;
    libc) packages_compiles stdio.h ;;
    poppler) command -v pdftotext >/dev/null ;;
    fuzzer) packages_fuzzes ;;
    argp) packages_compiles argp.h ;;
    openmpi | mpich) command -v "mpicc.$1" >/dev/null ;;
    venv) packages_python 'import ensurepip, venv' ;;
    python-headers)
      packages_python 'import os, sysconfig; open(os.path.join(sysconfig.get_path("include"), "Python.h"))'
      ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

# Runs apt-get as root, or fails. An update is ended after a minute; a package may take its time.
packages_apt() {
  local -a command=(env LC_ALL=C DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=1
    -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 -o DPkg::Lock::Timeout=120)
  [[ $1 != update ]] || command=(timeout 60 "${command[@]}")
  if ((EUID == 0)); then
    "${command[@]}" "$@"
  elif [[ -t 0 ]]; then
    sudo "${command[@]}" "$@"
  else
    sudo -n "${command[@]}" "$@" # no user is there to type a password
  fi
}

# Fetches the lists of packages; fails when no server answers, which takes a minute at most.
packages_reach() {
  local answers
  packages_say "fetching the package lists"
  answers=$(packages_apt update 2>/dev/null) || true
  grep -qE '^(Get|Hit):' <<<"$answers"
}

packages_install() {
  local -a wanted=("$@")
  if ! command -v apt-get >/dev/null; then
    packages_say "no apt-get here: nothing is installed"
    return 1
  fi
  if ((EUID != 0)) && ! command -v sudo >/dev/null; then
    packages_say "not root and no sudo: nothing is installed"
    return 1
  fi
  if ! packages_reach; then
    packages_say "no package server can be reached: nothing is installed"
    return 1
  fi
  packages_say "installing them"
  packages_apt install -y -q --no-install-recommends "${wanted[@]}" >/dev/null && return 0
  # One package that cannot be had must not keep the others away.
  local package
  for package in "${wanted[@]}"; do
    packages_apt install -y -q --no-install-recommends "$package" >/dev/null 2>&1 || true
  done
}

packages_leave_out() { # WHAT
  local line="left out: ${packages_purpose[$1]}: no $1 (Debian: ${packages_debian[$1]}"
  [[ -z ${packages_carriable[$1]-} ]] || line+='; to carry it: CONTRIBUTING.md'
  line+=')'
  packages_left_out+=("$line")
  packages_say "$line"
}

packages_need() {
  local what
  local -a missing=() debian=()
  for what in "$@"; do
    packages_have "$what" || missing+=("$what")
  done
  # Either of the two will do.
  if packages_have ninja || packages_have make; then
    local -a kept=()
    for what in ${missing[@]+"${missing[@]}"}; do
      [[ $what == ninja || $what == make ]] || kept+=("$what")
    done
    missing=(${kept[@]+"${kept[@]}"})
  fi

  if ((${#missing[@]} > 0)); then
    mapfile -t debian < <(for what in "${missing[@]}"; do
      printf '%s\n' "${packages_debian[$what]}"
    done | sort -u)
    packages_say "missing Debian packages: ${debian[*]}"
    packages_install "${debian[@]}" || true
    for what in "${missing[@]}"; do
      packages_have "$what" || packages_leave_out "$what"
    done
  fi

  local -a essential=()
  packages_have cmake || essential+=(cmake)
  packages_compiler >/dev/null || essential+=("a C compiler")
  packages_have ninja || packages_have make || essential+=("ninja or make")
  if ((${#essential[@]} > 0)); then
    local IFS=,
    packages_say "cannot build without: ${essential[*]}"
    return 1
  fi
}

# True if nvcc is there; where only its usual folder has it, CMake is told through CUDACXX.
packages_find_nvcc() {
  local folder
  [[ -z ${CUDACXX-} ]] && ! command -v nvcc >/dev/null || return 0
  for folder in "${CUDA_PATH-}" "${CUDA_HOME-}" /usr/local/cuda; do
    if [[ -x $folder/bin/nvcc ]]; then
      export CUDACXX=$folder/bin/nvcc
      return 0
    fi
  done
  return 1
}

packages_jobs() {
  printf '%s' "${EVENKEEL_JOBS:-$(nproc 2>/dev/null || printf 2)}"
}

# packages_cuda_for_tests GPU: what the CUDA module of the tests is compiled for. On a GPU (1, or one is
# there) code for just that; its PTX runs on later GPUs, should the build be used. Elsewhere PTX for one
# shows that nvcc takes the kernels; `cuda_code` reads it in the objects and has ptxas compile what it
# looks at, which for all kernels is a third of nvcc's time. Users get all. CMake keeps what a build
# folder was configured with first, so every script that configures the preset release calls this: code
# for all GPUs takes far longer.
packages_cuda_for_tests() {
  if (($1)) || [[ -e /dev/nvidiactl ]]; then
    export CUDAARCHS=${CUDAARCHS-native}
  else
    export CUDAARCHS=${CUDAARCHS-80-virtual}
    export CUDAFLAGS=${CUDAFLAGS--no-compress}
  fi
}

# Configures and builds a preset in the current directory: packages_build PRESET [TARGET...]
# With packages_keep_going set, a target that fails does not keep the others from being built.
# packages_options: more options of cmake's.
packages_build() {
  local preset=$1
  local -a targets=("${@:2}")
  ((${#targets[@]} > 0)) || targets=(all)
  # The presets leave the generator open; a build folder keeps the one it has.
  if [[ ! -e build/$preset/CMakeCache.txt && -z ${CMAKE_GENERATOR-} ]] && packages_have ninja; then
    local -x CMAKE_GENERATOR=Ninja
  fi
  cmake --preset "$preset" ${packages_options[@]+"${packages_options[@]}"} || return
  local -a keep_going=()
  if [[ -n ${packages_keep_going-} ]]; then
    keep_going=(-- -k)
    ! grep -q '^CMAKE_GENERATOR:.*Ninja' "build/$preset/CMakeCache.txt" || keep_going+=(0)
  fi
  cmake --build --preset "$preset" --target "${targets[@]}" --parallel "$(packages_jobs)" \
    ${keep_going[@]+"${keep_going[@]}"}
}

# Reads the output of packages_build. A terminal sees a line that changes, anything else a line for
# each quarter of the build: ninja's "[12/130]", make's "[ 9%]".
packages_progress() {
  local line percent shown=0
  while IFS= read -r line; do
    if [[ $line =~ ^\[([0-9]+)/([0-9]+)\] ]]; then
      percent=$((100 * BASH_REMATCH[1] / BASH_REMATCH[2]))
    elif [[ $line =~ ^\[\ *([0-9]+)%\] ]]; then
      percent=${BASH_REMATCH[1]}
    else
      continue
    fi
    if [[ -t 2 ]]; then
      printf '\r[setup] built %3d %%' "$percent" >&2
    elif ((percent / 25 > shown / 25)); then
      packages_say "built $percent %"
    fi
    shown=$percent
  done
  [[ ! -t 2 ]] || ((shown == 0)) || printf '\n' >&2
}
