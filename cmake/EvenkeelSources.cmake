# The library's sources, by layer, from the bottom up.
#
# A glob and not a list: the project's rule is "one name, three paths" (include/evenkeel/X.h,
# src/.../X.c, tests/.../check_X.c). A new file is then picked up by its place alone, and the test
# "layout" checks that a public header has its source and its check, so that a forgotten file shows.
# CONFIGURE_DEPENDS makes the build look again by itself when a file appears or goes.
set(EVENKEEL_LAYERS
    src/core
    src/world
    src/device
    src/backend
    src/backend/plan
    src/backend/cpu
    src/op
    src/module
    src/optim
    src/io
    criterion
    src/model
    parallel
    training)

set(EVENKEEL_SOURCES "")
foreach(layer IN LISTS EVENKEEL_LAYERS)
  file(GLOB layer_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${layer}/*.c")
  list(APPEND EVENKEEL_SOURCES ${layer_sources})
endforeach()

# ek__cpu_sgemm() has two sources, of which one is compiled. What oneDNN throws passes through the files that call it
# to the one that catches it.
if(EVENKEEL_HAVE_ONEDNN)
  list(FILTER EVENKEEL_SOURCES EXCLUDE REGEX "/cpu_sgemm_own\\.c$")
  set(onednn_sources ${EVENKEEL_SOURCES})
  list(FILTER onednn_sources INCLUDE REGEX "onednn\\.c$")
  set_property(SOURCE ${onednn_sources} APPEND PROPERTY COMPILE_OPTIONS -fexceptions)
  list(APPEND EVENKEEL_SOURCES "${PROJECT_SOURCE_DIR}/src/backend/cpu/cpu_onednn_catch.cc")
else()
  list(FILTER EVENKEEL_SOURCES EXCLUDE REGEX "onednn\\.c$")
endif()

# Where the library looks for a module that is not beside it.
set_property(
  SOURCE "${PROJECT_SOURCE_DIR}/src/core/loader.c"
  APPEND PROPERTY COMPILE_DEFINITIONS "EK_MODULE_DIR=\"${CMAKE_INSTALL_FULL_LIBDIR}\"")

# What reads and writes the headers of files, or refuses to.
if(EVENKEEL_HAVE_FILES)
  list(FILTER EVENKEEL_SOURCES EXCLUDE REGEX "/header_absent\\.c$")
else()
  list(FILTER EVENKEEL_SOURCES EXCLUDE REGEX "/(header_json|header_write|checksum)\\.c$")
endif()

# The library evenkeel_check, which tests modules. It calls evenkeel as any program does; options.c needs nothing of it.
file(GLOB EVENKEEL_CHECK_SOURCES CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/check/*.c")
list(APPEND EVENKEEL_CHECK_SOURCES "${PROJECT_SOURCE_DIR}/src/core/options.c")

# The kernels of the CPU backend that are compiled once per instruction set and type of values. Without the larger
# sets a processor that has them runs the baseline. `native` is what this machine runs of them. All but its
# best set, which it runs where EVENKEEL_ISA asks for them, are then compiled in a third of the time and are slow.
set(EVENKEEL_ISA_SETS "avx2;avx512"
    CACHE STRING "Instruction sets beside the baseline: native, or a list of avx2 and avx512")
mark_as_advanced(EVENKEEL_ISA_SETS)
file(GLOB EVENKEEL_ISA_SOURCES CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/backend/cpu/isa/*.c")

# The files that include six each. UNITY_BUILD would write the path of the tree into them, and a compiler cache
# would know them in this tree only.
function(evenkeel_isa_units result)
  set(units "")
  set(included 0)
  foreach(source IN LISTS EVENKEEL_ISA_SOURCES)
    math(EXPR unit "${included} / 6")
    math(EXPR included "${included} + 1")
    file(RELATIVE_PATH source "${PROJECT_SOURCE_DIR}" "${source}")
    string(APPEND text_${unit} "#include \"${source}\"\n")
    list(APPEND units ${unit})
  endforeach()
  list(REMOVE_DUPLICATES units)
  set(files "")
  foreach(unit IN LISTS units)
    set(file "${PROJECT_BINARY_DIR}/isa/isa_unit_${unit}.c")
    file(CONFIGURE OUTPUT "${file}" CONTENT "${text_${unit}}" @ONLY)
    list(APPEND files "${file}")
  endforeach()
  set(${result} ${files} PARENT_SCOPE)
endfunction()

# Adds one object library per instruction set and type from EVENKEEL_ISA_SOURCES, lists them in
# EVENKEEL_ISA_TARGETS, and tells cpu_dispatch.c which sets exist (EK_HAVE_ISA_AVX2, ..._AVX512).
# A kernel source sees
#   EK_ISA_SUFFIX  _baseline_f32, _avx2_bf16, .. to give its functions distinct names
#   EK_ISA_avx2    (or _baseline, _avx512) defined to 1, to ask with #ifdef
#   EK_ISA_WIDTH   floats in one vector: 4, 8 or 16
#   EK_VALUE_bf16  (or _f32, _f16) defined to 1: what values are in memory
#
# Six files are compiled as one: the header of the intrinsics takes half a second each time, as long as
# most of these files.
function(evenkeel_add_isa_objects)
  set(EVENKEEL_ISA_TARGETS "" PARENT_SCOPE)
  if(NOT EVENKEEL_ISA_SOURCES)
    return()
  endif()

  # Contraction into fused multiply-add, no errno and no trapping are safe for results that may be
  # NaN or infinite. None of the flags lets the compiler reorder a sum.
  set(level -O3)
  if(EVENKEEL_SANITIZE) # compiled in half the time; a race is in how work is cut, and checks of addresses cost more
    set(level -O1)
  endif()
  set(common -ffp-contract=fast -fno-math-errno -fno-trapping-math -Wno-psabi)
  if(CMAKE_C_COMPILER_ID STREQUAL "GNU") # else it inlines less because of what else is in the unit
    list(APPEND common --param=large-unit-insns=100000)
  endif()
  if(EVENKEEL_HARDENING_FORTIFY)
    # At level 3 a vector's load by memcpy() becomes a call inside the loop.
    list(APPEND common "SHELL:-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2")
  endif()
  if(EVENKEEL_SANITIZE MATCHES "undefined") # the address sanitizer sees them; a third of the compiler's time
    list(APPEND common -fno-sanitize=null,pointer-overflow)
  endif()
  set(baseline_flags "")
  set(avx2_flags -mavx2 -mfma -mf16c)
  set(avx512_flags -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c
                   -mprefer-vector-width=512)
  set(avx2_features avx2 fma) # what cpu_dispatch.c asks for; F16C comes with AVX2
  set(avx512_features avx512f avx512bw avx512dq avx512vl fma)
  set(baseline_width 4)
  set(avx2_width 8)
  set(avx512_width 16)

  set(sets baseline)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
    set(wanted ${EVENKEEL_ISA_SETS})
    if(wanted STREQUAL "native")
      include(CheckCSourceRuns)
      set(wanted "")
      foreach(isa IN ITEMS avx2 avx512)
        list(TRANSFORM ${isa}_features REPLACE "(.+)" "__builtin_cpu_supports(\"\\1\")" OUTPUT_VARIABLE asked)
        list(JOIN asked " && " asked)
        string(TOUPPER ${isa} upper)
        check_c_source_runs("int main(void) { return !(${asked}); }" EVENKEEL_MACHINE_HAS_${upper})
        if(EVENKEEL_MACHINE_HAS_${upper})
          list(APPEND wanted ${isa})
        endif()
      endforeach()
    endif()
    include(CheckCCompilerFlag)
    foreach(isa IN LISTS wanted)
      string(TOUPPER ${isa} upper)
      list(JOIN ${isa}_flags " " flags)
      check_c_compiler_flag("${flags}" EVENKEEL_COMPILER_HAS_${upper})
      if(EVENKEEL_COMPILER_HAS_${upper})
        list(APPEND sets ${isa})
        set_property(
          SOURCE "${PROJECT_SOURCE_DIR}/src/backend/cpu/cpu_dispatch.c"
          APPEND PROPERTY COMPILE_DEFINITIONS EK_HAVE_ISA_${upper}=1)
      else()
        message(STATUS "evenkeel: the compiler does not know ${isa}; its kernels are left out")
      endif()
    endforeach()
  endif()

  set(lesser_level ${level})
  if(EVENKEEL_ISA_SETS STREQUAL "native" AND NOT EVENKEEL_SANITIZE)
    set(lesser_level -O1)
  endif()
  list(TRANSFORM sets REPLACE ".+" "${lesser_level}" OUTPUT_VARIABLE levels)
  list(POP_BACK levels)
  list(APPEND levels ${level})

  evenkeel_isa_units(units)
  set(targets "")
  foreach(isa isa_level IN ZIP_LISTS sets levels)
    foreach(value f32 bf16 f16)
      set(target evenkeel_isa_${isa}_${value})
      add_library(${target} OBJECT ${units})
      evenkeel_library_flags(${target})
      target_compile_definitions(
        ${target} PRIVATE EK_ISA_SUFFIX=_${isa}_${value} EK_ISA_${isa}=1 EK_VALUE_${value}=1
                          EK_ISA_WIDTH=${${isa}_width})
      target_compile_options(${target} PRIVATE ${isa_level} ${common} ${${isa}_flags})
      list(APPEND targets ${target})
    endforeach()
  endforeach()
  set(EVENKEEL_ISA_TARGETS ${targets} PARENT_SCOPE)
endfunction()
