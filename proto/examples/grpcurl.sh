#!/usr/bin/env bash
# Calls of the gRPC API with grpcurl (docs/start/examples.md).
set -euo pipefail

usage() {
  cat <<'EOF'
usage: TANDEM_ENDPOINT=... TANDEM_TOKEN=... proto/examples/grpcurl.sh models|text|chat|stream|tokens|vllm

Calls a router's gRPC API and prints what it answers as JSON. Without TLS: for a router on this machine.

  models  the models that there are
  text    goes on with a text, in one answer
  chat    answers a message, in one answer
  stream  the same, event by event
  tokens  a text's tokens
  vllm    goes on with a text by vLLM's service
EOF
}

readonly proto=$(dirname "${BASH_SOURCE[0]}")/..
readonly sampling='"sampling": {"temperature": 0.8, "seed": 11}, "stopping": {"max_tokens": 32}'
readonly message='"chat": {"messages": [{"role": "user", "content": "Tell me a story."}]}'

# call FILE METHOD [JSON]: what the router answers.
call() {
  grpcurl -plaintext -import-path "$proto" -proto "$1" -H "authorization: Bearer ${TANDEM_TOKEN:?}" \
    -d "${3:-"{}"}" "${TANDEM_ENDPOINT:-127.0.0.1:7001}" "$2"
}

readonly file=tandem/v1/generation.proto service=tandem.v1.Generation
case ${1:-} in
  models) call $file $service/ListModels ;;
  text) call $file $service/GenerateOnce "{\"text\": \"Once upon a time\", $sampling}" ;;
  chat) call $file $service/GenerateOnce "{$message, $sampling}" ;;
  stream) call $file $service/Generate "{$message, $sampling}" ;;
  tokens) call $file $service/Tokenize '{"text": "Once upon a time"}' ;;
  vllm)
    call vllm/vllm_engine.proto vllm.grpc.engine.VllmEngine/Generate \
      '{"text": "Once upon a time", "sampling_params": {"temperature": 0.8, "seed": 11, "max_tokens": 32}}'
    ;;
  -h | --help) usage ;;
  *)
    usage >&2
    exit 2
    ;;
esac
