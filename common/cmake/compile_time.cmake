# Shortens a build from nothing. Code between gRPC and what computes takes longer to optimise than it runs. Presets with debug
# symbols optimise it and what is generated from protocols with -O1, tests that compute also with -O1, and other tests not at all
# (targets.cmake). A release has -O3 everywhere. Under sanitizers, which then see more of the source, nothing that is linked with
# gRPC is optimised. Ends the root's CMakeLists.txt, since it asks what targets are linked with.
option(TANDEM_PCH "Compile the headers that most unoptimised sources include once; for clang" OFF)

set(tandem_precompiled
  <algorithm> <array> <atomic> <bit> <cassert> <chrono> <cmath> <cstddef> <cstdint> <cstring> <deque> <functional>
  <limits> <map> <memory> <numeric> <optional> <random> <set> <string> <thread> <utility> <variant> <vector>
  <absl/base/thread_annotations.h> <absl/container/flat_hash_map.h> <absl/status/status.h> <absl/status/statusor.h>
  <absl/strings/match.h> <absl/strings/numbers.h> <absl/strings/str_cat.h> <absl/strings/str_join.h>
  <absl/synchronization/mutex.h> <absl/time/clock.h> <absl/time/time.h> <absl/types/span.h>
  <gmock/gmock.h> <gtest/gtest.h> <nlohmann/json.hpp>
  <grpcpp/grpcpp.h> <tandem/v1/admin.grpc.pb.h> <tandem/v1/config.pb.h> <tandem/v1/drafter.grpc.pb.h>
  <tandem/v1/generation.grpc.pb.h> <tandem/v1/registry.grpc.pb.h> <tandem/v1/routing.grpc.pb.h> <tandem/v1/state.pb.h>
  <tandem/v1/verifier.grpc.pb.h>)

# tandem_links_grpc(TARGET RESULT): whether TARGET is linked with gRPC, directly or through another target of ours.
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

# One target compiles the headers, and those without optimisation share them.
function(tandem_add_precompiled)
  set(source ${CMAKE_BINARY_DIR}/precompiled.cc)
  file(CONFIGURE OUTPUT ${source} CONTENT "// Its target compiles the headers.\n")
  add_library(tandem_precompiled OBJECT ${source})
  target_link_libraries(tandem_precompiled PRIVATE
    absl::flat_hash_map absl::statusor absl::strings absl::synchronization absl::time GTest::gmock
    nlohmann_json::nlohmann_json tandem::proto_grpc tandem_options)
  target_compile_options(tandem_precompiled PRIVATE -O0)
  target_precompile_headers(tandem_precompiled PRIVATE ${tandem_precompiled})
  # Without a time in the file, the compiler cache can compare it. Some targets have -pthread of a library, and all that
  # share the headers need it. Precompiled, the C++ library's headers warn of themselves; g++ warns of our code.
  target_compile_options(tandem_options INTERFACE
    "SHELL:-Xclang -fno-pch-timestamp" -pthread -Wno-deprecated-declarations)
endfunction()

function(tandem_shorten_compilation)
  set(generated tandem_proto tandem_proto_grpc tandem_otlp_grpc tandem_vllm_grpc)
  if(NOT TANDEM_SANITIZE)
    foreach(target IN LISTS generated)
      if(TARGET ${target})
        target_compile_options(${target} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
      endif()
    endforeach()
    return()
  endif()
  if(TANDEM_PCH)
    tandem_add_precompiled()
  endif()
  # Generated from protocols, without sanitizers: the compiler cache has these objects for all sanitized presets.
  foreach(target IN LISTS generated)
    if(TARGET ${target})
      target_compile_options(${target} PRIVATE -O0)
    endif()
  endforeach()
  get_property(targets GLOBAL PROPERTY tandem_targets)
  foreach(target IN LISTS targets)
    tandem_links_grpc(${target} links_grpc)
    get_target_property(options ${target} COMPILE_OPTIONS)
    if(links_grpc AND NOT "-O0" IN_LIST options)
      target_compile_options(${target} PRIVATE -O0)
      list(APPEND options -O0)
    endif()
    if(TANDEM_PCH AND "-O0" IN_LIST options)
      target_precompile_headers(${target} REUSE_FROM tandem_precompiled)
    endif()
  endforeach()
endfunction()
