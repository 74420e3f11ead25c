# CAF::core, from the config package that CAF 1.x installs or, for 0.17 (Debian), from its header and library.
find_package(CAF CONFIG QUIET COMPONENTS core)
if(NOT TARGET CAF::core)
  find_package(Threads REQUIRED)
  find_path(CAF_INCLUDE_DIR caf/config.hpp)
  find_library(CAF_CORE_LIBRARY caf_core)
  if(CAF_INCLUDE_DIR)
    file(STRINGS ${CAF_INCLUDE_DIR}/caf/config.hpp caf_version_line REGEX "^#define CAF_VERSION [0-9]+")
    if(caf_version_line MATCHES "([0-9]+)$")
      math(EXPR caf_major "${CMAKE_MATCH_1} / 10000")
      math(EXPR caf_minor "${CMAKE_MATCH_1} / 100 % 100")
      math(EXPR caf_patch "${CMAKE_MATCH_1} % 100")
      set(CAF_VERSION ${caf_major}.${caf_minor}.${caf_patch})
    endif()
  endif()
  include(FindPackageHandleStandardArgs)
  find_package_handle_standard_args(
    CAF
    REQUIRED_VARS CAF_CORE_LIBRARY CAF_INCLUDE_DIR
    VERSION_VAR CAF_VERSION)
  if(CAF_FOUND)
    add_library(CAF::core UNKNOWN IMPORTED)
    set_target_properties(
      CAF::core PROPERTIES IMPORTED_LOCATION ${CAF_CORE_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES
                                                                 ${CAF_INCLUDE_DIR})
    target_link_libraries(CAF::core INTERFACE Threads::Threads)
  endif()
endif()
