# XGrammar, built from the sources that deploy/fetch_xgrammar.sh fetched, as the static library tandem::xgrammar. All
# presets share one build of it below build/cache: its own flags (-Werror, link-time optimisation) and ours do not meet,
# and sanitizers watch what calls it.
if(NOT TANDEM_GRAMMAR)
  return()
endif()

set(tandem_requirement ${CMAKE_SOURCE_DIR}/common/grammar/xgrammar.txt)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${tandem_requirement})
file(STRINGS ${tandem_requirement} tandem_requirement REGEX "^xgrammar==")
if(NOT tandem_requirement MATCHES "^xgrammar==([0-9.]+) --hash=sha256:([0-9a-f]+)$")
  message(FATAL_ERROR "common/grammar/xgrammar.txt: expected xgrammar==VERSION --hash=sha256:DIGEST")
endif()
set(tandem_xgrammar_version ${CMAKE_MATCH_1})
set(tandem_xgrammar_digest ${CMAKE_MATCH_2})

set(tandem_cache ${CMAKE_SOURCE_DIR}/build/cache)
set(TANDEM_XGRAMMAR_SOURCE ${tandem_cache}/xgrammar-${tandem_xgrammar_version}.tar.gz CACHE FILEPATH
  "XGrammar's source distribution")
if(NOT EXISTS ${TANDEM_XGRAMMAR_SOURCE})
  message(FATAL_ERROR "XGrammar's sources are missing: ${TANDEM_XGRAMMAR_SOURCE}. Run deploy/fetch_xgrammar.sh "
    "(--help: by a mirror, from a file), or build without structured output: -DTANDEM_GRAMMAR=OFF")
endif()

set(tandem_xgrammar_compiler ${CMAKE_CXX_COMPILER})
set(tandem_compiler "${CMAKE_CXX_COMPILER_ID}-${CMAKE_CXX_COMPILER_VERSION}")
# Presets of clang link what g++ made for the others: both compilers use the same C++ library.
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # The name must be the one that CMake finds in those presets, or each would configure XGrammar anew.
  find_program(TANDEM_GXX NAMES c++ g++)
  file(REAL_PATH "${TANDEM_GXX}" tandem_gxx)
  if(TANDEM_GXX AND tandem_gxx MATCHES "[^n]g\\+\\+[^/]*$")
    execute_process(COMMAND ${TANDEM_GXX} -dumpfullversion OUTPUT_VARIABLE tandem_gxx_version
      OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    set(tandem_xgrammar_compiler ${TANDEM_GXX})
    set(tandem_compiler "gnu-${tandem_gxx_version}")
  endif()
endif()
string(TOLOWER "${tandem_compiler}-${CMAKE_SYSTEM_PROCESSOR}" tandem_compiler)
# What we add to it. A change of that builds it anew, from the sources as they were published.
set(tandem_patch ${CMAKE_SOURCE_DIR}/common/cmake/patch_xgrammar.cmake)
set(tandem_added ${CMAKE_SOURCE_DIR}/common/grammar)
set(tandem_additions "")
foreach(tandem_addition
    ${CMAKE_CURRENT_LIST_FILE} ${tandem_patch} ${tandem_added}/xgrammar_bounds.inc ${tandem_added}/xgrammar_edges.inc
    ${tandem_added}/xgrammar_masks.inc ${tandem_added}/xgrammar_numbers.inc ${tandem_added}/xgrammar_state_key.inc)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${tandem_addition})
  file(SHA256 ${tandem_addition} tandem_addition_digest)
  string(APPEND tandem_additions ${tandem_addition_digest})
endforeach()
string(SHA256 tandem_additions ${tandem_additions})
string(SUBSTRING ${tandem_additions} 0 8 tandem_additions)
set(tandem_xgrammar ${tandem_cache}/xgrammar-${tandem_xgrammar_version}-${tandem_compiler}-${tandem_additions})
file(MAKE_DIRECTORY ${tandem_xgrammar}/include)
file(CONFIGURE OUTPUT ${tandem_xgrammar}/build/config.cmake CONTENT "set(XGRAMMAR_BUILD_PYTHON_BINDINGS OFF)\n")

# The stamp of its last step says that an earlier build, of whichever preset, is complete; its folder is named after all that it is made of.
if(NOT EXISTS ${tandem_xgrammar}/src/tandem_xgrammar_build-stamp/tandem_xgrammar_build-install)
  include(ExternalProject)
  ExternalProject_Add(tandem_xgrammar_build
    PREFIX ${tandem_xgrammar}
    SOURCE_DIR ${tandem_xgrammar}/source
    BINARY_DIR ${tandem_xgrammar}/build
    INSTALL_DIR ${tandem_xgrammar}
    URL ${TANDEM_XGRAMMAR_SOURCE}
    URL_HASH SHA256=${tandem_xgrammar_digest}
    DOWNLOAD_EXTRACT_TIMESTAMP ON
    PATCH_COMMAND ${CMAKE_COMMAND} -DSOURCE=<SOURCE_DIR> -DADDITIONS=${tandem_added} -P ${tandem_patch}
    CMAKE_ARGS
      -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=${tandem_xgrammar} -DCMAKE_INSTALL_LIBDIR=lib
      -DCMAKE_CXX_COMPILER=${tandem_xgrammar_compiler} -DCMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER}
      # Six tenths of the time of the compiler. These sources stay as they are, so nothing is ever rebuilt for one of them.
      -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=10
      # They come after its own. What it has to say goes to common/grammar/xgrammar_log.cc.
      "-DCMAKE_CXX_FLAGS=-w -Wno-error -fno-lto -O2 -DXGRAMMAR_LOG_CUSTOMIZE=1"
    BUILD_BYPRODUCTS ${tandem_xgrammar}/lib/libxgrammar.a
    LOG_CONFIGURE ON LOG_INSTALL ON)
endif()

add_library(tandem_xgrammar STATIC IMPORTED GLOBAL)
add_library(tandem::xgrammar ALIAS tandem_xgrammar)
if(TARGET tandem_xgrammar_build)
  add_dependencies(tandem_xgrammar tandem_xgrammar_build)
endif()
set_target_properties(tandem_xgrammar PROPERTIES
  IMPORTED_LOCATION ${tandem_xgrammar}/lib/libxgrammar.a
  INTERFACE_INCLUDE_DIRECTORIES ${tandem_xgrammar}/include)
target_link_libraries(tandem_xgrammar INTERFACE Threads::Threads)
