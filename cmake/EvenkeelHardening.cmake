# Hardening, for everything this project compiles and links, tests included. Sets
#   EVENKEEL_HARDENING_COMPILE   the compile flags, for the test that looks for them (tests/install)
#   EVENKEEL_HARDENING_FORTIFY   TRUE if calls of the C library are checked against sizes
#
#   stack     canaries in functions with arrays; frames above a page are probed; no executable stack
#   loader    everything is bound at start and read-only afterwards; code and data in pages of their own
#   programs  position independent
#   calls     _FORTIFY_SOURCE needs optimisation, and sanitizers watch the same calls themselves
#
# What a compiler does not know is left out. The vector kernels stay at _FORTIFY_SOURCE=2
# (EvenkeelSources.cmake): with it a training step takes the instructions it took without hardening.
include(CheckCCompilerFlag)
include(CheckCSourceCompiles)
include(CheckPIESupported)

set(EVENKEEL_HARDENING_COMPILE "")
foreach(flag -fstack-protector-strong -fstack-clash-protection -fcf-protection)
  string(MAKE_C_IDENTIFIER "EVENKEEL_COMPILER_HAS${flag}" known)
  check_c_compiler_flag(${flag} ${known})
  if(${known})
    list(APPEND EVENKEEL_HARDENING_COMPILE ${flag})
  endif()
endforeach()

# Level 3 is a warning where compiler or C library has only 2; some C libraries have none.
set(EVENKEEL_HARDENING_FORTIFY FALSE)
if(NOT EVENKEEL_SANITIZE AND NOT EVENKEEL_COVERAGE AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
  foreach(level 3 2)
    set(fortify -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=${level})
    list(JOIN fortify " " CMAKE_REQUIRED_FLAGS)
    string(PREPEND CMAKE_REQUIRED_FLAGS "-O2 ")
    check_c_source_compiles(
      "#include <string.h>\n#if __USE_FORTIFY_LEVEL < ${level}\n#error\n#endif\nint main(void) { return 0; }\n"
      EVENKEEL_FORTIFY_${level})
    unset(CMAKE_REQUIRED_FLAGS)
    if(EVENKEEL_FORTIFY_${level})
      set(EVENKEEL_HARDENING_FORTIFY TRUE)
      list(APPEND EVENKEEL_HARDENING_COMPILE ${fortify})
      break()
    endif()
  endforeach()
endif()

foreach(flag IN LISTS EVENKEEL_HARDENING_COMPILE)
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:${flag}>"
                      "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${flag}>")
endforeach()
add_link_options(LINKER:-z,relro LINKER:-z,now LINKER:-z,noexecstack LINKER:-z,separate-code)

check_pie_supported(LANGUAGES C)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
