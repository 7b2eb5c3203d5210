# Finds oneDNN by its header and library, and gives
#   OneDNN_FOUND, OneDNN_VERSION, OneDNN_LIBRARY, OneDNN_INCLUDE_DIR and the target OneDNN::OneDNN.
#
# Why not oneDNN's own CMake package: the one Debian ships asks for the development files of OpenCL,
# which libdnnl-dev does not bring along, and fails without them. We use the C interface on the CPU.
#
# Installed next to evenkeel-config.cmake, for programs that link the static library.

find_path(OneDNN_INCLUDE_DIR NAMES oneapi/dnnl/dnnl.h)
find_library(OneDNN_LIBRARY NAMES dnnl)

if(OneDNN_INCLUDE_DIR AND EXISTS "${OneDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h")
  file(STRINGS "${OneDNN_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h" onednn_lines
       REGEX "^#define DNNL_VERSION_(MAJOR|MINOR|PATCH)[ \t]+[0-9]+")
  list(TRANSFORM onednn_lines REPLACE "^#define [A-Z_]+[ \t]+([0-9]+).*$" "\\1")
  list(JOIN onednn_lines "." OneDNN_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  OneDNN
  REQUIRED_VARS OneDNN_LIBRARY OneDNN_INCLUDE_DIR
  VERSION_VAR OneDNN_VERSION
  REASON_FAILURE_MESSAGE
    "On Debian: apt install libdnnl-dev. Elsewhere: add its prefix to CMAKE_PREFIX_PATH.")

if(OneDNN_FOUND AND NOT TARGET OneDNN::OneDNN)
  add_library(OneDNN::OneDNN UNKNOWN IMPORTED)
  set_target_properties(
    OneDNN::OneDNN PROPERTIES IMPORTED_LOCATION "${OneDNN_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES
                                                                    "${OneDNN_INCLUDE_DIR}")
endif()
mark_as_advanced(OneDNN_INCLUDE_DIR OneDNN_LIBRARY)
