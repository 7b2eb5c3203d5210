# The wire over MPI between processes: a module for each MPI, libevenkeel_mpi_openmpi and
# libevenkeel_mpi_mpich, which libevenkeel loads when a world is opened over that MPI. Sets
#   EVENKEEL_MPIS                     those of openmpi and mpich that are built
#   EVENKEEL_MPI_<name>_COMPILE, _LINK   flags for programs that use it, for the tests
#
# EVENKEEL_MPI = AUTO builds those whose compiler (mpicc.openmpi, mpicc.mpich, or mpicc if it is of that
# MPI) is found, ON insists on one of them, OFF does not look.

set(EVENKEEL_MPI AUTO CACHE STRING "The modules for MPI: AUTO, ON or OFF")
set_property(CACHE EVENKEEL_MPI PROPERTY STRINGS AUTO ON OFF)
set(EVENKEEL_MPIS "")
set(evenkeel_mpi_dir "${PROJECT_SOURCE_DIR}/src/world/mpi")

# What mpicc adds to the command of the compiler. Sets evenkeel_mpi_compile and evenkeel_mpi_link in the
# caller, or leaves them empty where there is no such MPI.
function(evenkeel_find_mpi name macro)
  set(evenkeel_mpi_compile "" PARENT_SCOPE)
  set(evenkeel_mpi_link "" PARENT_SCOPE)
  find_program(EVENKEEL_MPICC_${name} NAMES mpicc.${name} mpicc HINTS ENV MPI_HOME PATH_SUFFIXES bin)
  mark_as_advanced(EVENKEEL_MPICC_${name})
  if(NOT EVENKEEL_MPICC_${name})
    return()
  endif()
  execute_process(COMMAND "${EVENKEEL_MPICC_${name}}" -show OUTPUT_VARIABLE command ERROR_QUIET
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
  separate_arguments(command UNIX_COMMAND "${command}")
  list(FILTER command INCLUDE REGEX "^-")
  set(compile ${command})
  list(FILTER compile INCLUDE REGEX "^-[ID]")
  set(link ${command})
  list(FILTER link INCLUDE REGEX "^-([Ll]|Wl,)")
  include(CheckCSourceCompiles)
  list(JOIN compile " " CMAKE_REQUIRED_FLAGS)
  set(CMAKE_REQUIRED_LINK_OPTIONS ${link})
  set(CMAKE_REQUIRED_LIBRARIES ${link})
  check_c_source_compiles(
    "#include <mpi.h>\n#ifndef ${macro}\n#error\n#endif\nint main(void) { return MPI_Init(0, 0); }\n"
    EVENKEEL_HAVE_MPI_${name})
  if(EVENKEEL_HAVE_MPI_${name})
    set(evenkeel_mpi_compile ${compile} PARENT_SCOPE)
    set(evenkeel_mpi_link ${link} PARENT_SCOPE)
  else()
    unset(EVENKEEL_HAVE_MPI_${name} CACHE) # it may have been installed by the next time
    unset(EVENKEEL_MPICC_${name} CACHE)
  endif()
endfunction()

# The headers of an MPI are not ours: no warnings from them.
function(evenkeel_use_mpi target name)
  set(folders ${EVENKEEL_MPI_${name}_COMPILE})
  list(FILTER folders INCLUDE REGEX "^-I")
  list(TRANSFORM folders REPLACE "^-I" "")
  target_include_directories(${target} SYSTEM PRIVATE ${folders})
  target_link_libraries(${target} PRIVATE ${EVENKEEL_MPI_${name}_LINK})
endfunction()

set(evenkeel_mpi_macro_openmpi OPEN_MPI)
set(evenkeel_mpi_macro_mpich MPICH_VERSION)
set(evenkeel_mpi_names openmpi mpich)
if(NOT EVENKEEL_MPI)
  set(evenkeel_mpi_names "")
endif()
foreach(name IN LISTS evenkeel_mpi_names)
  evenkeel_find_mpi(${name} ${evenkeel_mpi_macro_${name}})
  if(NOT evenkeel_mpi_link)
    continue()
  endif()
  list(APPEND EVENKEEL_MPIS ${name})
  set(EVENKEEL_MPI_${name}_COMPILE ${evenkeel_mpi_compile})
  set(EVENKEEL_MPI_${name}_LINK ${evenkeel_mpi_link})
  set(module evenkeel_mpi_${name})
  add_library(${module} MODULE "${evenkeel_mpi_dir}/mpi_wire.c")
  evenkeel_strict(${module})
  set_target_properties(${module} PROPERTIES C_VISIBILITY_PRESET hidden
                                             LINK_DEPENDS "${evenkeel_mpi_dir}/mpi_module.map")
  target_include_directories(${module} PRIVATE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src")
  evenkeel_use_mpi(${module} ${name})
  target_link_libraries(${module} PRIVATE Threads::Threads)
  target_link_options(${module} PRIVATE "LINKER:--version-script=${evenkeel_mpi_dir}/mpi_module.map")
  if(NOT EVENKEEL_SANITIZE)
    target_link_options(${module} PRIVATE "LINKER:-z,defs")
  endif()
  install(TARGETS ${module} LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endforeach()
if(NOT EVENKEEL_MPIS AND EVENKEEL_MPI STREQUAL "ON")
  message(FATAL_ERROR "evenkeel: EVENKEEL_MPI is ON, but neither Open MPI nor MPICH was found "
                      "(Debian: libopenmpi-dev, libmpich-dev)")
endif()
if(EVENKEEL_MPIS)
  message(STATUS "evenkeel: with the modules for MPI: ${EVENKEEL_MPIS} (-DEVENKEEL_MPI=OFF leaves them out)")
else()
  message(STATUS "evenkeel: without a module for MPI (Debian: libopenmpi-dev, libmpich-dev)")
endif()
