# What `cmake --install` puts in place: headers, the libraries, the CMake package, evenkeel.pc and evenkeel_check.pc; the
# pages and the examples, in the folders in which they point to each other (the test "links" follows
# every link); the man page of the library. bench/ installs its program, with a man page and completion for bash.
include(CMakePackageConfigHelpers)

set(evenkeel_cmakedir "${CMAKE_INSTALL_LIBDIR}/cmake/evenkeel")

# Where an installed program finds the library: relative to itself, so that the tree can be moved,
# unless one of the two folders was given as a full path.
if(IS_ABSOLUTE "${CMAKE_INSTALL_BINDIR}" OR IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(evenkeel_program_rpath "${CMAKE_INSTALL_FULL_LIBDIR}")
else()
  file(RELATIVE_PATH evenkeel_program_rpath "${CMAKE_INSTALL_FULL_BINDIR}" "${CMAKE_INSTALL_FULL_LIBDIR}")
  string(PREPEND evenkeel_program_rpath "$ORIGIN/")
endif()
# Libraries in a folder of CMAKE_PREFIX_PATH, where the loader does not look, are found there again.
set_target_properties(evenkeel PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
# libevenkeel.so is beside it, in the build folder as where it is installed.
set_target_properties(evenkeel_check PROPERTIES INSTALL_RPATH "$ORIGIN" BUILD_WITH_INSTALL_RPATH ON)

install(TARGETS evenkeel evenkeel_check EXPORT evenkeel-targets)
# An export set of its own, because only this one may need oneDNN (see evenkeel-config.cmake.in).
install(TARGETS evenkeel_static evenkeel_check_static EXPORT evenkeel-static-targets)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/evenkeel" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        FILES_MATCHING PATTERN "*.h")
foreach(page LICENSE README.md CONTRIBUTING.md bench/peers/README.md)
  cmake_path(GET page PARENT_PATH folder)
  install(FILES "${PROJECT_SOURCE_DIR}/${page}" DESTINATION "${CMAKE_INSTALL_DOCDIR}/${folder}")
endforeach()
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs" DESTINATION "${CMAKE_INSTALL_DOCDIR}"
        FILES_MATCHING PATTERN "*.md" PATTERN "*.png" PATTERN "*.svg")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/examples" DESTINATION "${CMAKE_INSTALL_DOCDIR}"
        FILES_MATCHING PATTERN "*.c" PATTERN "*.cu")
# Pages point to headers by include/evenkeel/X.h: a link leads to where the headers are.
set(evenkeel_include_link "${CMAKE_INSTALL_FULL_INCLUDEDIR}")
if(NOT IS_ABSOLUTE "${CMAKE_INSTALL_DOCDIR}" AND NOT IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
  file(RELATIVE_PATH evenkeel_include_link "${CMAKE_INSTALL_FULL_DOCDIR}"
       "${CMAKE_INSTALL_FULL_INCLUDEDIR}")
endif()
file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/pages")
file(CREATE_LINK "${evenkeel_include_link}" "${PROJECT_BINARY_DIR}/pages/include" SYMBOLIC)
install(FILES "${PROJECT_BINARY_DIR}/pages/include" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(FILES "${PROJECT_SOURCE_DIR}/cmake/examples.cmake"
        DESTINATION "${CMAKE_INSTALL_DOCDIR}/examples" RENAME CMakeLists.txt)

include(EvenkeelReference)

# evenkeel(3), from the headers' own overview.
set(man_page "${PROJECT_BINARY_DIR}/evenkeel.3")
add_custom_command(
  OUTPUT "${man_page}"
  COMMAND awk -v VERSION=${PROJECT_VERSION} -f "${PROJECT_SOURCE_DIR}/cmake/overview.awk"
          "${PROJECT_SOURCE_DIR}/include/evenkeel/evenkeel.h" > "${man_page}"
  DEPENDS "${PROJECT_SOURCE_DIR}/include/evenkeel/evenkeel.h" "${PROJECT_SOURCE_DIR}/cmake/overview.awk"
  VERBATIM)
add_custom_target(evenkeel_man ALL DEPENDS "${man_page}")
install(FILES "${man_page}" DESTINATION "${CMAKE_INSTALL_MANDIR}/man3")

foreach(set evenkeel-targets evenkeel-static-targets)
  install(EXPORT ${set} NAMESPACE evenkeel:: DESTINATION "${evenkeel_cmakedir}")
endforeach()

configure_package_config_file(
  "${PROJECT_SOURCE_DIR}/cmake/evenkeel-config.cmake.in" "${PROJECT_BINARY_DIR}/evenkeel-config.cmake"
  INSTALL_DESTINATION "${evenkeel_cmakedir}")
# Before 1.0 a minor version may break programs.
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(compatibility SameMinorVersion)
else()
  set(compatibility SameMajorVersion)
endif()
write_basic_package_version_file("${PROJECT_BINARY_DIR}/evenkeel-config-version.cmake"
                                 COMPATIBILITY ${compatibility})
install(FILES "${PROJECT_BINARY_DIR}/evenkeel-config.cmake"
              "${PROJECT_BINARY_DIR}/evenkeel-config-version.cmake"
        DESTINATION "${evenkeel_cmakedir}")
if(EVENKEEL_HAVE_ONEDNN)
  install(FILES "${PROJECT_SOURCE_DIR}/cmake/FindOneDNN.cmake" DESTINATION "${evenkeel_cmakedir}")
endif()

# Paths in evenkeel.pc are relative to its place, so that an installed tree can be moved.
cmake_path(ABSOLUTE_PATH CMAKE_INSTALL_LIBDIR BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}"
           OUTPUT_VARIABLE pc_dir)
file(RELATIVE_PATH EVENKEEL_PC_PREFIX "${pc_dir}/pkgconfig" "${CMAKE_INSTALL_PREFIX}")
cmake_path(ABSOLUTE_PATH CMAKE_INSTALL_LIBDIR BASE_DIRECTORY "/prefix" OUTPUT_VARIABLE pc_libdir)
cmake_path(ABSOLUTE_PATH CMAKE_INSTALL_INCLUDEDIR BASE_DIRECTORY "/prefix" OUTPUT_VARIABLE pc_incdir)
string(REGEX REPLACE "^/prefix" "\${prefix}" EVENKEEL_PC_LIBDIR "${pc_libdir}")
string(REGEX REPLACE "^/prefix" "\${prefix}" EVENKEEL_PC_INCLUDEDIR "${pc_incdir}")
set(EVENKEEL_PC_PRIVATE "-lm -pthread")
foreach(name IN LISTS CMAKE_DL_LIBS)
  string(PREPEND EVENKEEL_PC_PRIVATE "-l${name} ")
endforeach()
set(EVENKEEL_PC_NOTE "")
if(EVENKEEL_HAVE_ONEDNN)
  foreach(name IN LISTS EVENKEEL_CXX_RUNTIME)
    string(PREPEND EVENKEEL_PC_PRIVATE "-l${name} ")
  endforeach()
  string(PREPEND EVENKEEL_PC_PRIVATE "-ldnnl ")
  set(EVENKEEL_PC_NOTE
      "# A program that is -static as a whole needs a static oneDNN. Debian's libdnnl-dev has none: build evenkeel with\n# -DEVENKEEL_ONEDNN=OFF for such programs.\n")
endif()
configure_file("${PROJECT_SOURCE_DIR}/cmake/evenkeel.pc.in" "${PROJECT_BINARY_DIR}/evenkeel.pc" @ONLY)
configure_file("${PROJECT_SOURCE_DIR}/cmake/evenkeel_check.pc.in" "${PROJECT_BINARY_DIR}/evenkeel_check.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/evenkeel.pc" "${PROJECT_BINARY_DIR}/evenkeel_check.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
