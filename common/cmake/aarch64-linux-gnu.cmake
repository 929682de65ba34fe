# Builds for 64-bit Arm on another machine, with Debian's cross compiler and its arm64 libraries
# (deploy/install.sh --aarch64). What is built runs under QEMU's user mode, tests included.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)

set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

# Debian keeps the libraries of both machines side by side under one root. CMake goes by the compiler's own folder of
# libraries; pkg-config has to be told.
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig)

# "max" has every extension that QEMU knows, bfloat16 and 8-bit matrix products among them.
find_program(TANDEM_QEMU_AARCH64 NAMES qemu-aarch64-static qemu-aarch64 REQUIRED)
set(CMAKE_CROSSCOMPILING_EMULATOR ${TANDEM_QEMU_AARCH64} -cpu max)
