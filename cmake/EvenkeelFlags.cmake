# Compiler flags, for everything this project compiles: sanitizers, hardening, and two functions
#   evenkeel_strict(target)         language level and warnings: library, tests, bench, examples
#   evenkeel_library_flags(target)  the above and what only the library's own objects need
#
# Never -ffast-math or -Ofast: results must not depend on how a compiler feels about NaN and order.

if(EVENKEEL_SANITIZE)
  add_compile_options(-fsanitize=${EVENKEEL_SANITIZE} -fno-sanitize-recover=all
                      -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${EVENKEEL_SANITIZE})
  # Some hundred programs, each with the sanitizer's runtime: lld takes half the time, where it is installed.
  include(CheckLinkerFlag)
  check_linker_flag(C -fuse-ld=lld EVENKEEL_LINKER_LLD)
  if(EVENKEEL_LINKER_LLD)
    add_link_options(-fuse-ld=lld)
  endif()
  # clang looks at the types of C++ objects by a runtime that a program in C does not link.
  add_compile_options("$<$<COMPILE_LANG_AND_ID:CXX,Clang,AppleClang>:-fno-sanitize=vptr,function>")
endif()
if(EVENKEEL_COVERAGE)
  add_compile_options(--coverage)
  add_link_options(--coverage)
endif()

include("${CMAKE_CURRENT_LIST_DIR}/EvenkeelHardening.cmake")

# Editors, clang-tidy and other tools read compile_commands.json.
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

function(evenkeel_strict target)
  set_target_properties(
    ${target}
    PROPERTIES C_STANDARD 11
               C_STANDARD_REQUIRED ON
               C_EXTENSIONS OFF
               CXX_STANDARD 17
               CXX_STANDARD_REQUIRED ON
               CXX_EXTENSIONS OFF)
  # Extensions are off, so the system interfaces (mmap, madvise, clock_gettime) are asked for by name.
  target_compile_definitions(${target} PRIVATE _POSIX_C_SOURCE=200809L _DEFAULT_SOURCE)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wconversion -Wshadow
                                           -Wformat -Wformat-security)
  if(EVENKEEL_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()

function(evenkeel_library_flags target)
  evenkeel_strict(${target})
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden
                                             CXX_VISIBILITY_PRESET hidden)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/include"
                                               "${PROJECT_SOURCE_DIR}/src"
                             "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${target} PRIVATE Threads::Threads)
  if(NOT EVENKEEL_SANITIZE)
    # A program may call the library on a small stack; large tiles are in scratch (cpu/team.h).
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C>:-Wframe-larger-than=16384>)
  endif()
endfunction()

# What libFuzzer is to see from inside: decisions, not arithmetic, which it would make slow; and what
# bytes and text are compared with, in what reads them. In a program without libFuzzer it does nothing.
function(evenkeel_fuzzed target)
  if(EVENKEEL_FUZZER)
    get_target_property(sources ${target} SOURCES)
    list(FILTER sources EXCLUDE REGEX "/backend/cpu/|^\\$")
    set(readers ${sources})
    list(FILTER sources INCLUDE REGEX "/(backend|criterion|module|op|optim|parallel)/|/tensor\\.c$")
    list(REMOVE_ITEM readers ${sources} "")
    set_property(SOURCE ${readers} APPEND PROPERTY COMPILE_OPTIONS -fsanitize=fuzzer-no-link)
    set_property(SOURCE ${sources} APPEND PROPERTY COMPILE_OPTIONS
                                                   -fsanitize-coverage=inline-8bit-counters,pc-table)
  endif()
endfunction()
