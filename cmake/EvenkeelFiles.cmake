# Files of tensors: xxHash (a header alone) sums them up. Without it the functions of safetensors.h refuse.
# Sets EVENKEEL_HAVE_FILES.
#
# EVENKEEL_FILES = AUTO uses it where it is found, ON insists, OFF does not look.

set(EVENKEEL_FILES AUTO CACHE STRING "Files of tensors, with checksums by xxHash: AUTO, ON or OFF")
set_property(CACHE EVENKEEL_FILES PROPERTY STRINGS AUTO ON OFF)

set(EVENKEEL_HAVE_FILES FALSE)
if(EVENKEEL_FILES)
  find_path(EVENKEEL_XXHASH_INCLUDE_DIR xxhash.h)
  mark_as_advanced(EVENKEEL_XXHASH_INCLUDE_DIR)
  if(EVENKEEL_XXHASH_INCLUDE_DIR)
    set(EVENKEEL_HAVE_FILES TRUE)
  elseif(EVENKEEL_FILES STREQUAL "ON")
    message(FATAL_ERROR "evenkeel: xxHash not found (Debian: libxxhash-dev)")
  else()
    message(STATUS "evenkeel: xxHash not found (Debian: libxxhash-dev); files of tensors are left out")
  endif()
endif()

# Gives objects of the library what files need: nothing has to be linked.
function(evenkeel_link_files target)
  get_target_property(type ${target} TYPE)
  if(EVENKEEL_HAVE_FILES AND type STREQUAL "OBJECT_LIBRARY")
    target_include_directories(${target} SYSTEM PRIVATE "${EVENKEEL_XXHASH_INCLUDE_DIR}")
  endif()
endfunction()
