# Installs the libraries so that `find_package(longstraw)` gives longstraw::longstraw and a target for every layer.
add_library(longstraw INTERFACE)
add_library(longstraw::longstraw ALIAS longstraw)
target_link_libraries(longstraw INTERFACE longstraw_actors)

set(longstraw_layers memory kernels models messages actors)
list(TRANSFORM longstraw_layers PREPEND longstraw_ OUTPUT_VARIABLE longstraw_targets)
# Its headers lie in the folder of the models.
list(APPEND longstraw_targets longstraw_reference)
install(TARGETS longstraw ${longstraw_targets} EXPORT longstraw_targets)
foreach(layer IN LISTS longstraw_layers)
  install(
    DIRECTORY ${layer}
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/longstraw
    FILES_MATCHING
    PATTERN "*.hpp")
endforeach()
install(
  EXPORT longstraw_targets
  NAMESPACE longstraw::
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/longstraw)
configure_package_config_file(cmake/longstraw-config.cmake.in longstraw-config.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/longstraw)
write_basic_package_version_file(longstraw-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/longstraw-config.cmake ${CMAKE_BINARY_DIR}/longstraw-config-version.cmake
              cmake/FindCAF.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/longstraw)
if(TARGET longstraw_program)
  install(TARGETS longstraw_program)
endif()
