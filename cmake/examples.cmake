# The examples against an installed evenkeel, one program for each source. Installed as CMakeLists.txt
# beside them:
#
#     cmake -S PREFIX/share/doc/evenkeel/examples -B build -DCMAKE_PREFIX_PATH=PREFIX
#     cmake --build build
#
# -DEVENKEEL_LIBRARY=evenkeel::evenkeel_check_static links the static library instead.
#
# Without CMake: cc -std=c11 own_model.c -o own_model $(pkg-config --cflags --libs evenkeel_check) -lm
# and, where the loader does not look in PREFIX/lib, -Wl,-rpath,$(pkg-config --variable=libdir evenkeel)
cmake_minimum_required(VERSION 3.25)
project(evenkeel_examples LANGUAGES C)

find_package(evenkeel CONFIG REQUIRED)
# With ek_module_check(), which own_model.c calls; a program without it links evenkeel::evenkeel.
set(EVENKEEL_LIBRARY evenkeel::evenkeel_check CACHE STRING "or evenkeel::evenkeel_check_static")

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_EXTENSIONS OFF)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
# own_cuda.cu needs nvcc, and an evenkeel with devices `cuda` to run.
include(CheckLanguage)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  add_executable(own_cuda own_cuda.cu)
  set_target_properties(own_cuda PROPERTIES CUDA_STANDARD 17)
  target_link_libraries(own_cuda PRIVATE evenkeel::evenkeel CUDA::cudart)
endif()
file(GLOB sources "${CMAKE_CURRENT_SOURCE_DIR}/*.c")
foreach(source IN LISTS sources)
  cmake_path(GET source STEM name)
  add_executable(${name} "${source}")
  target_link_libraries(${name} PRIVATE ${EVENKEEL_LIBRARY} m)
endforeach()
