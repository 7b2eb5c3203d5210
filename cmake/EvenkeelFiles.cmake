# Files of tensors: jansson reads and writes their headers, xxHash (a header alone) sums them up. Where
# one of them is not there, the functions of safetensors.h refuse.
# Sets EVENKEEL_HAVE_FILES, and EVENKEEL_JANSSON_LIBRARY if it is TRUE.
#
# EVENKEEL_FILES = AUTO takes them where they are found, ON insists, OFF does not look.

set(EVENKEEL_FILES AUTO CACHE STRING "Files of tensors, by jansson and xxHash: AUTO, ON or OFF")
set_property(CACHE EVENKEEL_FILES PROPERTY STRINGS AUTO ON OFF)

set(EVENKEEL_HAVE_FILES FALSE)
if(EVENKEEL_FILES)
  find_path(EVENKEEL_JANSSON_INCLUDE_DIR jansson.h)
  find_library(EVENKEEL_JANSSON_LIBRARY jansson)
  find_path(EVENKEEL_XXHASH_INCLUDE_DIR xxhash.h)
  mark_as_advanced(EVENKEEL_JANSSON_INCLUDE_DIR EVENKEEL_JANSSON_LIBRARY EVENKEEL_XXHASH_INCLUDE_DIR)
  # A static one need not be position independent.
  if(EVENKEEL_JANSSON_LIBRARY MATCHES "\\.a$")
    set(EVENKEEL_JANSSON_LIBRARY "")
  endif()
  if(EVENKEEL_JANSSON_INCLUDE_DIR AND EVENKEEL_JANSSON_LIBRARY AND EVENKEEL_XXHASH_INCLUDE_DIR)
    set(EVENKEEL_HAVE_FILES TRUE)
  elseif(EVENKEEL_FILES STREQUAL "ON")
    message(FATAL_ERROR "evenkeel: jansson or xxHash not found (Debian: libjansson-dev, libxxhash-dev)")
  else()
    message(STATUS "evenkeel: jansson or xxHash not found (Debian: libjansson-dev, libxxhash-dev); "
                   "files of tensors are left out")
  endif()
endif()

# Gives a library, or objects of it, what files need.
function(evenkeel_link_files target)
  if(NOT EVENKEEL_HAVE_FILES)
    return()
  endif()
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "OBJECT_LIBRARY")
    target_include_directories(${target} SYSTEM PRIVATE "${EVENKEEL_JANSSON_INCLUDE_DIR}"
                                                        "${EVENKEEL_XXHASH_INCLUDE_DIR}")
  elseif(type STREQUAL "STATIC_LIBRARY")
    target_link_libraries(${target} INTERFACE $<LINK_ONLY:jansson>)
  else()
    target_link_libraries(${target} PRIVATE "${EVENKEEL_JANSSON_LIBRARY}")
  endif()
endfunction()
