# Matrix products on the CPU: by oneDNN or, where that is not there, by the library's own routine.
# Sets EVENKEEL_HAVE_ONEDNN; if it is TRUE, what FindOneDNN.cmake sets is there as well, and
# EVENKEEL_CXX_RUNTIME, the libraries that a program in C links for what is compiled as C++.
#
# EVENKEEL_ONEDNN = AUTO takes it where it is found, ON insists, OFF does not look. It needs a C++
# compiler: what oneDNN throws is caught in src/backend/cpu/cpu_onednn_catch.cc.

set(EVENKEEL_ONEDNN AUTO CACHE STRING "Matrix products of the CPU by oneDNN: AUTO, ON or OFF")
set_property(CACHE EVENKEEL_ONEDNN PROPERTY STRINGS AUTO ON OFF)

set(EVENKEEL_HAVE_ONEDNN FALSE)
set(missing "")
if(EVENKEEL_ONEDNN)
  find_package(OneDNN QUIET)
  include(CheckLanguage)
  if(NOT CMAKE_CXX_COMPILER)
    unset(CMAKE_CXX_COMPILER CACHE) # it may have been installed since the last time
  endif()
  check_language(CXX)
  if(NOT OneDNN_FOUND)
    set(missing "oneDNN not found (Debian: libdnnl-dev)")
  elseif(NOT CMAKE_CXX_COMPILER)
    set(missing "oneDNN needs a C++ compiler (Debian: g++)")
  endif()
endif()
if(NOT EVENKEEL_ONEDNN)
  message(STATUS "evenkeel: matrix products on the CPU are the library's own")
elseif(missing STREQUAL "")
  set(EVENKEEL_HAVE_ONEDNN TRUE)
  enable_language(CXX)
  set(EVENKEEL_CXX_RUNTIME ${CMAKE_CXX_IMPLICIT_LINK_LIBRARIES})
  list(REMOVE_ITEM EVENKEEL_CXX_RUNTIME m ${CMAKE_C_IMPLICIT_LINK_LIBRARIES})
  list(REMOVE_DUPLICATES EVENKEEL_CXX_RUNTIME)
  message(STATUS "evenkeel: matrix products on the CPU by oneDNN ${OneDNN_VERSION}")
elseif(EVENKEEL_ONEDNN STREQUAL "AUTO")
  message(STATUS "evenkeel: ${missing}; it is left out, and matrix products on the CPU are the "
                 "library's own")
else()
  message(FATAL_ERROR "evenkeel: EVENKEEL_ONEDNN is ${EVENKEEL_ONEDNN}, but ${missing}")
endif()
