# One target per folder. Names follow the folder: common/engine is
# tandem_common_engine, aliased tandem::common_engine.

# tandem_library(NAME name SOURCES a.cc b.cc [DEPS targets...] [PRIVATE_DEPS targets...] [COMPUTES])
# Headers need not be listed. DEPS are what the headers show; PRIVATE_DEPS what only the sources use. COMPUTES: a step or a draft
# spends its time here, so that the preset dev optimises it with -O2 (compile_time.cmake).
function(tandem_library)
  cmake_parse_arguments(ARG "COMPUTES" "NAME" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(tandem_${ARG_NAME} STATIC ${ARG_SOURCES})
  add_library(tandem::${ARG_NAME} ALIAS tandem_${ARG_NAME})
  target_include_directories(tandem_${ARG_NAME} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(tandem_${ARG_NAME} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS} tandem_options)
  set_property(GLOBAL APPEND PROPERTY tandem_targets tandem_${ARG_NAME})
  if(NOT ARG_COMPUTES)
    target_compile_options(tandem_${ARG_NAME} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
  endif()
endfunction()

# tandem_binary(NAME tandem-router SOURCES main.cc DEPS targets...)
function(tandem_binary)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS} tandem_options)
  target_compile_options(${ARG_NAME} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
  set_property(GLOBAL APPEND PROPERTY tandem_targets ${ARG_NAME})
endfunction()

# tandem_test(NAME base_test SOURCES a_test.cc b_test.cc DEPS targets... [LABELS unit] [TIMEOUT seconds] [COMPUTES])
# COMPUTES: most of the test's time goes to its own code (compile_time.cmake).
# Labels: unit (default), integration, gpu, slow.
# Tests find their data under TANDEM_SOURCE_DIR and the demo models under deploy/demo-models.
function(tandem_test)
  cmake_parse_arguments(ARG "COMPUTES" "NAME;TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT TANDEM_TESTS)
    return()
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(TANDEM_SANITIZE)
    math(EXPR ARG_TIMEOUT "3 * ${ARG_TIMEOUT}")
  endif()
  add_executable(tandem_${ARG_NAME} ${ARG_SOURCES})
  target_compile_definitions(tandem_${ARG_NAME} PRIVATE
    TANDEM_SOURCE_DIR="${CMAKE_SOURCE_DIR}" TANDEM_BINARY_DIR="${CMAKE_BINARY_DIR}")
  # Optimising most tests costs more time than it saves.
  if(TANDEM_SANITIZE)
    target_compile_options(tandem_${ARG_NAME} PRIVATE -O0)
  elseif(ARG_COMPUTES)
    target_compile_options(tandem_${ARG_NAME} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
  else()
    target_compile_options(tandem_${ARG_NAME} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O0>)
  endif()
  target_link_libraries(tandem_${ARG_NAME} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main tandem_options)
  set_property(GLOBAL APPEND PROPERTY tandem_targets tandem_${ARG_NAME})
  add_test(NAME ${ARG_NAME} COMMAND tandem_${ARG_NAME})
  # Most of these compute, while scripts mostly wait for the processes that they start: ctest --parallel with twice as
  # many as there are cores (tests/run.sh) keeps the cores busy with one of these each, or two scripts in its place.
  set_tests_properties(${ARG_NAME} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} PROCESSORS 2)
  # Here and not in a script, so that no way of running the tests goes without them.
  if(TANDEM_SANITIZE STREQUAL "thread")
    set_tests_properties(${ARG_NAME} PROPERTIES ENVIRONMENT
      "TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/tsan.supp:halt_on_error=1:second_deadlock_stack=1${tandem_symbolizer}")
  elseif(TANDEM_SANITIZE)
    set_tests_properties(${ARG_NAME} PROPERTIES ENVIRONMENT
      "ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1${tandem_symbolizer};UBSAN_OPTIONS=print_stacktrace=1${tandem_symbolizer}")
  endif()
endfunction()
