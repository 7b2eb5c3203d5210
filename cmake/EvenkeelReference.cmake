# The reference of every public function, HTML in share/doc/evenkeel/reference, from the headers' comments
# by Doxygen. Sets EVENKEEL_HAVE_REFERENCE, and evenkeel_reference, the folder, if it is TRUE.
#
# EVENKEEL_REFERENCE = AUTO makes it where Doxygen is found, ON insists, OFF does not look.

set(EVENKEEL_REFERENCE AUTO CACHE STRING "The reference of all functions, by Doxygen: AUTO, ON or OFF")
set_property(CACHE EVENKEEL_REFERENCE PROPERTY STRINGS AUTO ON OFF)

set(EVENKEEL_HAVE_REFERENCE FALSE)
if(NOT EVENKEEL_REFERENCE)
  return()
endif()
if(EVENKEEL_REFERENCE STREQUAL "AUTO" AND (EVENKEEL_SANITIZE OR EVENKEEL_COVERAGE))
  return() # nothing of it would be instrumented
endif()
find_program(EVENKEEL_DOXYGEN doxygen)
mark_as_advanced(EVENKEEL_DOXYGEN)
if(NOT EVENKEEL_DOXYGEN)
  if(EVENKEEL_REFERENCE STREQUAL "AUTO")
    message(STATUS "evenkeel: no Doxygen (Debian: doxygen); the reference of functions is left out, "
                   "and the headers' own comments remain")
    return()
  endif()
  message(FATAL_ERROR "evenkeel: EVENKEEL_REFERENCE is ON, but no Doxygen was found (Debian: doxygen)")
endif()

set(evenkeel_reference "${PROJECT_BINARY_DIR}/reference")
configure_file("${PROJECT_SOURCE_DIR}/cmake/Doxyfile.in" "${PROJECT_BINARY_DIR}/Doxyfile" @ONLY)
file(GLOB reference_headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/include/evenkeel/*.h")
add_custom_command(
  OUTPUT "${evenkeel_reference}/index.html"
  COMMAND "${CMAKE_COMMAND}" -E rm -rf "${evenkeel_reference}" # pages of headers that are gone
  COMMAND "${CMAKE_COMMAND}" -E make_directory "${evenkeel_reference}"
  COMMAND "${EVENKEEL_DOXYGEN}" "${PROJECT_BINARY_DIR}/Doxyfile"
  DEPENDS ${reference_headers} "${PROJECT_BINARY_DIR}/Doxyfile"
          "${PROJECT_SOURCE_DIR}/cmake/reference.awk"
  COMMENT "Writing the reference of all functions"
  VERBATIM)
add_custom_target(evenkeel_reference ALL DEPENDS "${evenkeel_reference}/index.html")
install(DIRECTORY "${evenkeel_reference}" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
set(EVENKEEL_HAVE_REFERENCE TRUE)
