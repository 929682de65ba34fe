# Compiler settings as interface targets, so that nothing is set globally:
# every Tandem target links tandem_options privately.

find_program(TANDEM_CCACHE ccache)
if(TANDEM_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${TANDEM_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TANDEM_CCACHE})
endif()

add_library(tandem_options INTERFACE)
target_include_directories(tandem_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(tandem_options INTERFACE
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wno-missing-field-initializers
  # Law 1 fixes the order and the roundings of every sum: the compiler may not
  # contract or reassociate. Kernels ask for fused multiply-add by name.
  -ffp-contract=off)

if(TANDEM_SANITIZE)
  list(JOIN TANDEM_SANITIZE "," tandem_sanitizers)
  target_compile_options(tandem_options INTERFACE
    -fsanitize=${tandem_sanitizers} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  if("undefined" IN_LIST TANDEM_SANITIZE)
    # A third of the time to compile: what these see at every access, AddressSanitizer or the processor sees as well.
    target_compile_options(tandem_options INTERFACE -fno-sanitize=null,vptr,alignment,object-size)
  endif()
  # The compiler's own macros do not do: tests/tsan takes one of them back.
  target_compile_definitions(tandem_options INTERFACE TANDEM_SANITIZED)
  target_link_options(tandem_options INTERFACE -fsanitize=${tandem_sanitizers})
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 sees members of std::optional, std::variant and inlined vectors as read where they are not, mostly inside the
  # libraries' headers, where no line of ours could silence it. Clang's analysis of the same sources (presets asan, tsan) stays on.
  target_compile_options(tandem_options INTERFACE -Wno-maybe-uninitialized)
  if(CMAKE_UNITY_BUILD)
    # In KiB. A unity build's sources fill a gigabyte, and looking for garbage in it takes g++ a tenth of its time.
    # The warnings are about names that two sources have in their anonymous namespaces. Compiled alone, as everywhere else, a
    # source gets them for its own names.
    target_compile_options(tandem_options INTERFACE
      "SHELL:--param ggc-min-heapsize=4000000" -Wno-shadow -Wno-subobject-linkage)
  endif()
endif()

set(tandem_symbolizer "")
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # Sources have options of g++ for single warnings.
  target_compile_options(tandem_options INTERFACE -Wno-unknown-warning-option)
  if(TANDEM_SANITIZE)
    # Names the functions in reports. tests/tsan.supp needs the names. Debian has the program beside the compiler only.
    file(REAL_PATH ${CMAKE_CXX_COMPILER} tandem_clang)
    cmake_path(GET tandem_clang PARENT_PATH tandem_clang)
    find_program(TANDEM_SYMBOLIZER llvm-symbolizer HINTS ${tandem_clang} REQUIRED)
    set(tandem_symbolizer :external_symbolizer_path=${TANDEM_SYMBOLIZER})
  endif()
endif()

if(TANDEM_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "TANDEM_FUZZ needs clang, and this is ${CMAKE_CXX_COMPILER_ID}: cmake --preset fuzz (deploy/install.sh --clang)")
  endif()
  # Besides what libFuzzer goes by: numbers of files and peers that are made integers.
  target_compile_options(tandem_options INTERFACE -fsanitize=fuzzer-no-link,float-cast-overflow)
endif()
