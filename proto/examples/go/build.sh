#!/usr/bin/env bash
# Builds the Go example with Debian's packages alone, without network (docs/start/examples.md).
set -euo pipefail

usage() {
  cat <<'EOF'
usage: proto/examples/go/build.sh FOLDER

Generates Go from Tandem's protos and builds FOLDER/generate. Needs Debian 12's packages golang-go, protobuf-compiler,
protoc-gen-go and golang-google-grpc-dev. TANDEM_GO_LIBRARIES is the folder of the last one's sources
(/usr/share/gocode).
EOF
}

if (($# != 1)) || [[ $1 == -* ]]; then
  usage
  [[ ${1:-} == --help || ${1:-} == -h ]] || exit 2
  exit 0
fi
example=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$1"
output=$(cd "$1" && pwd)
libraries=${TANDEM_GO_LIBRARIES:-/usr/share/gocode}

# No module is asked for: Debian's packages are sources in a path.
export GO111MODULE=off GOPATH="$output/path:$libraries" GOCACHE="$output/cache" GOFLAGS=
readonly sources="$output/path/src/tandem.example"
mkdir -p "$sources/generate" "$output/bin"
go build -o "$output/bin/protoc-gen-go-grpc" google.golang.org/grpc/cmd/protoc-gen-go-grpc
# The protos name no package of Go: whoever generates chooses.
protos=()
options=()
for proto in "$example"/../../tandem/v1/*.proto; do
  name=tandem/v1/$(basename "$proto")
  protos+=("$name")
  options+=(--go_opt="M$name=tandem.example/tandemv1" --go-grpc_opt="M$name=tandem.example/tandemv1")
done
PATH="$output/bin:$PATH" protoc -I "$example/../.." --go_out="$output/path/src" --go-grpc_out="$output/path/src" \
  "${options[@]}" "${protos[@]}"
cp "$example/generate.go" "$sources/generate/"
go build -o "$output/generate" tandem.example/generate
