# What shortens a build from nothing and changes no program: headers that most sources include are read once
# (TANDEM_PCH), and under sanitizers only what computes is optimised. Ends the root's CMakeLists.txt, since it asks what
# targets are linked with.
option(TANDEM_PCH "Read the headers that most sources include once, precompiled; rebuilds take longer" OFF)

set(tandem_base_headers
  <algorithm> <array> <atomic> <bit> <cassert> <chrono> <cmath> <cstddef> <cstdint> <cstring> <deque> <functional>
  <limits> <map> <memory> <numeric> <optional> <random> <set> <string> <thread> <utility> <variant> <vector>
  <absl/base/thread_annotations.h> <absl/container/flat_hash_map.h> <absl/status/status.h> <absl/status/statusor.h>
  <absl/strings/match.h> <absl/strings/numbers.h> <absl/strings/str_cat.h> <absl/strings/str_join.h>
  <absl/synchronization/mutex.h> <absl/time/clock.h> <absl/time/time.h> <absl/types/span.h>)
set(tandem_test_headers <gmock/gmock.h> <gtest/gtest.h> <nlohmann/json.hpp>)
set(tandem_grpc_headers
  <grpcpp/grpcpp.h> <tandem/v1/admin.grpc.pb.h> <tandem/v1/config.pb.h> <tandem/v1/drafter.grpc.pb.h>
  <tandem/v1/generation.grpc.pb.h> <tandem/v1/registry.grpc.pb.h> <tandem/v1/routing.grpc.pb.h> <tandem/v1/state.pb.h>
  <tandem/v1/verifier.grpc.pb.h>)

# tandem_links_grpc(TARGET RESULT): whether TARGET is linked with gRPC, by itself or by one of ours.
function(tandem_links_grpc target result)
  get_property(known GLOBAL PROPERTY tandem_links_grpc_${target})
  if("${known}" STREQUAL "")
    set(known FALSE)
    set(libraries)
    foreach(property LINK_LIBRARIES INTERFACE_LINK_LIBRARIES)
      get_target_property(listed ${target} ${property})
      if(listed)
        list(APPEND libraries ${listed})
      endif()
    endforeach()
    list(REMOVE_DUPLICATES libraries)
    foreach(library IN LISTS libraries)
      string(REGEX REPLACE "^\\$<LINK_ONLY:(.*)>$" "\\1" library "${library}")
      if(library MATCHES "^gRPC::")
        set(known TRUE)
      elseif(library MATCHES "^tandem" AND TARGET ${library})
        get_target_property(aliased ${library} ALIASED_TARGET)
        if(aliased)
          set(library ${aliased})
        endif()
        tandem_links_grpc(${library} indirectly)
        if(indirectly)
          set(known TRUE)
        endif()
      endif()
    endforeach()
    set_property(GLOBAL PROPERTY tandem_links_grpc_${target} ${known})
  endif()
  set(${result} ${known} PARENT_SCOPE)
endfunction()

# What the headers of KIND are compiled for: targets with the same OPTIONS.
function(tandem_precompiled kind options headers libraries)
  if(NOT TARGET tandem_pch_${kind})
    set(source ${CMAKE_BINARY_DIR}/pch/${kind}.cc)
    file(CONFIGURE OUTPUT ${source} CONTENT "// Takes the precompiled headers.\n")
    add_library(tandem_pch_${kind} OBJECT ${source})
    target_link_libraries(tandem_pch_${kind} PRIVATE ${libraries} tandem_options)
    target_compile_options(tandem_pch_${kind} PRIVATE ${options})
    target_precompile_headers(tandem_pch_${kind} PRIVATE ${headers})
    set_target_properties(tandem_pch_${kind} PROPERTIES UNITY_BUILD OFF)
  endif()
endfunction()

# For every library, binary and test of ours.
function(tandem_shorten_compilation)
  if(TANDEM_PCH)
    # Some have it of a library, and it is of what has to be the same.
    target_compile_options(tandem_options INTERFACE -pthread)
  endif()
  if(TANDEM_PCH AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    # The compiler cache compares what is in them.
    target_compile_options(tandem_options INTERFACE "SHELL:-Xclang -fno-pch-timestamp")
  endif()
  if(TANDEM_SANITIZE)
    # What is generated from protocols has no sanitizer, so that the compiler cache has it for all of these presets.
    foreach(target tandem_proto tandem_proto_grpc tandem_otlp_grpc tandem_vllm_grpc)
      if(TARGET ${target})
        target_compile_options(${target} PRIVATE -O0)
      endif()
    endforeach()
  endif()
  get_property(targets GLOBAL PROPERTY tandem_targets)
  foreach(target IN LISTS targets)
    tandem_links_grpc(${target} links_grpc)
    get_target_property(is_test ${target} TANDEM_TEST)
    # Code between gRPC and what computes, and tests themselves, take longer to optimise than they run. The sanitizers see
    # more of the source then.
    set(options)
    set(kind base)
    set(headers ${tandem_base_headers})
    set(libraries absl::flat_hash_map absl::statusor absl::strings absl::synchronization absl::time)
    if(TANDEM_SANITIZE AND (is_test OR links_grpc))
      set(options -O0)
    elseif(is_test)
      # What is tested is optimised; optimising the tests themselves costs more time than it saves.
      set(options $<$<CONFIG:RelWithDebInfo>:-O1>)
    endif()
    target_compile_options(${target} PRIVATE ${options})
    if(NOT TANDEM_PCH)
      continue()
    endif()
    if(is_test OR "-O0" IN_LIST options)
      set(kind test)
      list(APPEND headers ${tandem_test_headers})
      list(APPEND libraries GTest::gmock nlohmann_json::nlohmann_json)
    endif()
    if(links_grpc)
      set(kind ${kind}_grpc)
      list(APPEND headers ${tandem_grpc_headers})
      list(APPEND libraries tandem::proto_grpc)
    endif()
    tandem_precompiled(${kind} "${options}" "${headers}" "${libraries}")
    target_precompile_headers(${target} REUSE_FROM tandem_pch_${kind})
    # Sources with flags of their own would not fit.
    get_target_property(sources ${target} SOURCES)
    get_target_property(folder ${target} SOURCE_DIR)
    foreach(source IN LISTS sources)
      cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${folder})
      get_source_file_property(own ${source} TARGET_DIRECTORY ${target} COMPILE_OPTIONS)
      if(own)
        set_property(SOURCE ${source} TARGET_DIRECTORY ${target} PROPERTY SKIP_PRECOMPILE_HEADERS ON)
      endif()
    endforeach()
  endforeach()
endfunction()
