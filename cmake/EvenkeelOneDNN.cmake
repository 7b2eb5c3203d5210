# Matrix products on the CPU: by oneDNN or, where that is not there, by the library's own routine.
# Sets EVENKEEL_HAVE_ONEDNN; what FindOneDNN.cmake sets is there as well if it is TRUE.
#
# EVENKEEL_ONEDNN = AUTO takes it where it is found, ON insists, OFF does not look.

set(EVENKEEL_ONEDNN AUTO CACHE STRING "Matrix products of the CPU by oneDNN: AUTO, ON or OFF")
set_property(CACHE EVENKEEL_ONEDNN PROPERTY STRINGS AUTO ON OFF)

set(EVENKEEL_HAVE_ONEDNN FALSE)
if(EVENKEEL_ONEDNN STREQUAL "AUTO")
  find_package(OneDNN QUIET)
elseif(EVENKEEL_ONEDNN)
  find_package(OneDNN REQUIRED)
endif()
if(EVENKEEL_ONEDNN AND OneDNN_FOUND)
  set(EVENKEEL_HAVE_ONEDNN TRUE)
  message(STATUS "evenkeel: matrix products on the CPU by oneDNN ${OneDNN_VERSION}")
elseif(EVENKEEL_ONEDNN)
  message(STATUS "evenkeel: oneDNN not found (Debian: libdnnl-dev); it is left out, and matrix "
                 "products on the CPU are the library's own")
else()
  message(STATUS "evenkeel: matrix products on the CPU are the library's own")
endif()
