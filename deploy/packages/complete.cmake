# CPack runs this when all files of a package lie in its folder, stripped: adds the bill of materials, what the licences of compiled-in
# libraries want, and to a tarball the list of Debian's packages that it needs.
set(folder ${CPACK_TEMPORARY_INSTALL_DIRECTORY})
if(CPACK_GENERATOR STREQUAL DEB)
  string(APPEND folder /usr)
endif()

function(add_output file)
  execute_process(COMMAND ${ARGN} OUTPUT_FILE ${folder}/${file} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(GLOB wheels ${folder}/share/tandem/python/*.whl)
if(NOT wheels)
  message(FATAL_ERROR "the package has no Python client: make packages with deploy/package.sh")
endif()
add_output(share/tandem/sbom.json ${CPACK_TANDEM_SBOM} ${folder}/bin)
add_output(share/doc/tandem/THIRD_PARTY ${CPACK_TANDEM_NOTICES} ${folder}/bin)
if(NOT CPACK_GENERATOR STREQUAL DEB)
  add_output(share/tandem/debian-packages ${CPACK_TANDEM_SBOM} --packages ${folder}/bin)
endif()
