# Headers, library, CMake package and pkg-config file.
include(CMakePackageConfigHelpers)

install(TARGETS scaledmm EXPORT scaledmmTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/scaledmm ${PROJECT_BINARY_DIR}/include/scaledmm
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h")

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/scaledmm)
install(EXPORT scaledmmTargets NAMESPACE scaledmm:: DESTINATION ${package_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/scaledmmConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/scaledmmConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/scaledmmConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/scaledmmConfig.cmake ${PROJECT_BINARY_DIR}/scaledmmConfigVersion.cmake
        DESTINATION ${package_dir})

# The prefix as seen from the file, so that the installed tree can be moved.
file(RELATIVE_PATH pc_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(${CMAKE_CURRENT_LIST_DIR}/scaledmm.pc.in ${PROJECT_BINARY_DIR}/scaledmm.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/scaledmm.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
