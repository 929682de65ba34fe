# cmake -DFOLDER=... -DOUTPUT=... -P embed.cmake: writes kPageFiles (page.h) with the files of the folder `page`.
set(paths "/" "/live.css" "/live.js" "/icon.svg")
set(names "index.html" "live.css" "live.js" "icon.svg")
set(types "text/html" "text/css" "text/javascript" "image/svg+xml")

set(arrays "")
set(entries "")
foreach(path name type IN ZIP_LISTS paths names types)
  file(READ "${FOLDER}/${name}" bytes HEX)
  # Lines of 24 bytes.
  string(REGEX REPLACE "(................................................)" "\\1\n" bytes "${bytes}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "\\\\x\\1" bytes "${bytes}")
  string(REPLACE "\n" "\"\n    \"" bytes "${bytes}")
  string(MAKE_C_IDENTIFIER "${name}" identifier)
  string(APPEND arrays "constexpr char ${identifier}[] =\n    \"${bytes}\";\n")
  string(APPEND entries
         "    {\"${path}\", \"${type}; charset=utf-8\",\n     absl::string_view(${identifier}, sizeof(${identifier}) - 1)},\n")
endforeach()
file(WRITE "${OUTPUT}" "// Made by embed.cmake.
#include \"router/live/page.h\"

namespace tandem::router {
namespace {

${arrays}
}  // namespace

const std::array<PageFile, 4> kPageFiles = {{
${entries}}};

}  // namespace tandem::router
")
