# The CUDA backend: a library of its own, libevenkeel_cuda, which libevenkeel loads when it is asked for
# a `cuda` device. Sets
#   EVENKEEL_CUDA_C_SOURCES, EVENKEEL_CUDA_CU_SOURCES   its sources, for the tests' emulation too
#   EVENKEEL_CUDA_MODULE                                TRUE if it is built here
#
# EVENKEEL_CUDA = AUTO builds it where nvcc, the CUDA runtime and cuBLASLt are found, ON insists, OFF
# does not look. NCCL is used if it is there: it ships no CMake package, so it is found by hand.

set(EVENKEEL_CUDA AUTO CACHE STRING "The CUDA backend: AUTO, ON or OFF")
set_property(CACHE EVENKEEL_CUDA PROPERTY STRINGS AUTO ON OFF)

set(evenkeel_cuda_dir "${PROJECT_SOURCE_DIR}/src/backend/cuda")
file(GLOB EVENKEEL_CUDA_C_SOURCES CONFIGURE_DEPENDS "${evenkeel_cuda_dir}/*.c")
file(GLOB EVENKEEL_CUDA_CU_SOURCES CONFIGURE_DEPENDS "${evenkeel_cuda_dir}/*.cu")
set(EVENKEEL_CUDA_MODULE FALSE)

# Says why there is no module, or stops if it was asked for.
function(evenkeel_cuda_left_out reason)
  if(EVENKEEL_CUDA STREQUAL "AUTO")
    message(STATUS "evenkeel: ${reason}; the CUDA backend is left out")
  else()
    message(FATAL_ERROR "evenkeel: EVENKEEL_CUDA is ${EVENKEEL_CUDA}, but ${reason}")
  endif()
endfunction()

if(NOT EVENKEEL_CUDA)
  message(STATUS "evenkeel: without the CUDA backend (-DEVENKEEL_CUDA=ON builds it)")
  return()
endif()
if(EVENKEEL_SANITIZE OR EVENKEEL_COVERAGE)
  evenkeel_cuda_left_out("nvcc does not instrument code")
  return()
endif()

include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  unset(CMAKE_CUDA_COMPILER CACHE) # it may have been installed by the next time
  evenkeel_cuda_left_out("no CUDA compiler was found")
  return()
endif()
# Before the language is enabled, or nvcc's default is taken; `native` would need a GPU here. Code for
# each GPU of data centres and desks that this nvcc knows (86: A10, RTX 30; 89: L4, L40S, RTX 40; 120:
# RTX 50), and PTX for those that come.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  execute_process(COMMAND "${CMAKE_CUDA_COMPILER}" --list-gpu-code OUTPUT_VARIABLE known ERROR_QUIET)
  set(architectures "")
  foreach(number 80 86 89 90 100 120)
    if(known MATCHES "sm_${number}[ \n]")
      list(APPEND architectures ${number}-real)
    endif()
  endforeach()
  set(CMAKE_CUDA_ARCHITECTURES ${architectures} 90-virtual CACHE STRING "GPUs to compile for")
endif()
enable_language(CUDA)
find_package(CUDAToolkit QUIET)
if(NOT TARGET CUDA::cudart OR NOT TARGET CUDA::cublasLt)
  evenkeel_cuda_left_out("the CUDA runtime or cuBLASLt was not found")
  return()
endif()

find_path(EVENKEEL_NCCL_INCLUDE_DIR NAMES nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_library(EVENKEEL_NCCL_LIBRARY NAMES nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
mark_as_advanced(EVENKEEL_NCCL_INCLUDE_DIR EVENKEEL_NCCL_LIBRARY)

# Where the module looks for CUDA's libraries: the toolkit's folder, because CMake takes it for one
# that the system knows; that of cuBLASLt, which may be another one; and the usual one, for a build
# that was carried to another machine.
# Two languages, two sets of flags: the C part has the library's, the kernels nvcc's.
add_library(evenkeel_cuda_host OBJECT ${EVENKEEL_CUDA_C_SOURCES})
evenkeel_strict(evenkeel_cuda_host)
set_target_properties(evenkeel_cuda_host PROPERTIES POSITION_INDEPENDENT_CODE ON
                                                    C_VISIBILITY_PRESET hidden)
add_library(evenkeel_cuda MODULE ${EVENKEEL_CUDA_CU_SOURCES} $<TARGET_OBJECTS:evenkeel_cuda_host>)
get_target_property(cublas_library CUDA::cublasLt IMPORTED_LOCATION)
cmake_path(GET cublas_library PARENT_PATH cublas_folder)
set(evenkeel_cuda_rpath "${CUDAToolkit_LIBRARY_DIR}" "${cublas_folder}" /usr/local/cuda/lib64)
if(EVENKEEL_NCCL_LIBRARY) # opened at run time: cuda_nccl_library.c
  cmake_path(GET EVENKEEL_NCCL_LIBRARY PARENT_PATH nccl_folder)
  list(APPEND evenkeel_cuda_rpath "${nccl_folder}")
endif()
list(REMOVE_DUPLICATES evenkeel_cuda_rpath)
set(evenkeel_cuda_map "${evenkeel_cuda_dir}/module.map")
set_target_properties(
  evenkeel_cuda
  PROPERTIES CUDA_STANDARD 17
             CUDA_STANDARD_REQUIRED ON
             CUDA_EXTENSIONS OFF
             CUDA_RUNTIME_LIBRARY Shared
             POSITION_INDEPENDENT_CODE ON
             CUDA_VISIBILITY_PRESET hidden
             LINK_DEPENDS "${evenkeel_cuda_map}"
             BUILD_WITH_INSTALL_RPATH ON # else CMake pads the path with empty entries: the working folder
             INSTALL_RPATH "${evenkeel_cuda_rpath}"
             INSTALL_RPATH_USE_LINK_PATH ON)
target_compile_options(evenkeel_cuda PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>")
foreach(target evenkeel_cuda_host evenkeel_cuda)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/include"
                                               "${PROJECT_SOURCE_DIR}/src")
  target_include_directories(${target} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
endforeach()
target_link_libraries(evenkeel_cuda PRIVATE CUDA::cudart CUDA::cublasLt Threads::Threads
                                            ${CMAKE_DL_LIBS})
target_link_options(evenkeel_cuda PRIVATE "LINKER:--version-script=${evenkeel_cuda_map}"
                    "LINKER:-z,defs")
# Of NCCL only the header is needed: where a machine has no NCCL, its GPUs use each other's memory.
if(EVENKEEL_NCCL_INCLUDE_DIR)
  target_compile_definitions(evenkeel_cuda_host PRIVATE EK_CUDA_HAVE_NCCL=1)
  target_include_directories(evenkeel_cuda_host SYSTEM PRIVATE "${EVENKEEL_NCCL_INCLUDE_DIR}")
else()
  message(STATUS "evenkeel: nccl.h was not found; different GPUs use each other's memory")
endif()
# Beside the library, where it is found also after the installed tree was moved.
install(TARGETS evenkeel_cuda LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
set(EVENKEEL_CUDA_MODULE TRUE)
message(STATUS "evenkeel: with the CUDA backend for ${CMAKE_CUDA_ARCHITECTURES} "
               "(-DEVENKEEL_CUDA=OFF leaves it out)")
