# Units and configuration, and the packages that deploy/package.sh makes by CPack: a .deb and a tarball of the same layout.

# These say where programs and configuration are, which is known when they are installed.
set(tandem_units tandem-drafter.service tandem-router.service tandem-verifier.service)
set(tandem_configuration drafter.flags.yaml router.flags.yaml router.yaml verifier.flags.yaml)
# The kernel shows a GPU to a service as a device.
set(tandem_private_devices yes)
if(TARGET tandem-cuda)
  set(tandem_private_devices no)
endif()
install(CODE "
  set(packages \"${CMAKE_CURRENT_SOURCE_DIR}/packages\")
  set(units ${tandem_units})
  set(configuration ${tandem_configuration})
  set(private_devices ${tandem_private_devices})
  set(binaries ${CMAKE_INSTALL_BINDIR})
  set(documents ${CMAKE_INSTALL_DOCDIR})" COMPONENT files)
install(SCRIPT packages/install_configured.cmake COMPONENT files)

set(TANDEM_PACKAGE_MAINTAINER "Tandem <tandem@localhost>" CACHE STRING "Who answers for the .deb: Name <address>")
set(CPACK_PACKAGE_NAME tandem)
set(CPACK_PACKAGE_VENDOR Tandem)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "language model server with speculative decoding")
set(CPACK_PACKAGE_DESCRIPTION
  "Tandem serves large language models faster with speculative decoding. Drafters guess tokens and a verifier
checks many guesses at once; the output is the model's own, token for token.
.
The package has the servers (router, verifier, drafter) with systemd units, which no installation starts, the
command line with `tandem serve`, which needs no configuration, the Python client as a wheel, and dashboards,
alerts and Kubernetes manifests.")
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_MONOLITHIC_INSTALL ON)
# Adds what depends on the files that are in the package.
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_SOURCE_DIR}/packages/complete.cmake)
set(CPACK_TANDEM_SBOM ${CMAKE_CURRENT_SOURCE_DIR}/sbom.py)
set(CPACK_TANDEM_NOTICES ${CMAKE_CURRENT_SOURCE_DIR}/packages/notices.py)

set(CPACK_GENERATOR DEB TGZ)
set(CPACK_VERBATIM_VARIABLES ON)
string(TOLOWER ${CMAKE_SYSTEM_NAME} tandem_system)
set(CPACK_PACKAGE_FILE_NAME tandem-${PROJECT_VERSION}-${tandem_system}-${CMAKE_SYSTEM_PROCESSOR})

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "${TANDEM_PACKAGE_MAINTAINER}")
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# `tandem serve` and tandem-models are Python; pip brings published models.
set(CPACK_DEBIAN_PACKAGE_DEPENDS "adduser, init-system-helpers (>= 1.52), python3 (>= 3.11)")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "ca-certificates, python3-pip | python3-venv")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "prometheus")
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
list(TRANSFORM tandem_configuration PREPEND /etc/tandem/ OUTPUT_VARIABLE tandem_conffiles)
list(JOIN tandem_conffiles "\n" tandem_conffiles)
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/conffiles CONTENT "${tandem_conffiles}\n")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA
  ${CMAKE_CURRENT_BINARY_DIR}/conffiles ${CMAKE_CURRENT_SOURCE_DIR}/packages/debian/postinst
  ${CMAKE_CURRENT_SOURCE_DIR}/packages/debian/postrm ${CMAKE_CURRENT_SOURCE_DIR}/packages/debian/prerm)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
