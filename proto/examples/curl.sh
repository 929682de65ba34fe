#!/usr/bin/env bash
# Calls of the HTTP API with curl alone (docs/start/examples.md).
set -euo pipefail

usage() {
  cat <<'EOF'
usage: OPENAI_BASE_URL=... OPENAI_API_KEY=... proto/examples/curl.sh models|text|chat|stream|response|tokens

Calls a router's HTTP API and prints what it answers. TANDEM_MODEL is the model; without it the router takes the only one.

  models    the models that there are
  text      goes on with a text
  chat      answers a message
  stream    the same, as server-sent events
  response  the same by the Responses API
  tokens    a text's tokens
EOF
}

# The model, where one is named: `"model": "...", `.
model=${TANDEM_MODEL:+"\"model\": \"$TANDEM_MODEL\", "}
readonly sampling='"temperature": 0.8, "seed": 11'
readonly messages='"messages": [{"role": "user", "content": "Tell me a story."}]'

# call PATH [JSON]: what the router answers at PATH; exits with 22 when it refuses, whose reason is printed too.
call() {
  local url=$1
  shift
  curl --silent --show-error --fail-with-body --no-buffer "$url" \
    --header "Authorization: Bearer ${OPENAI_API_KEY:?}" --header "Content-Type: application/json" ${1:+--data "$1"}
  echo
}

readonly base=${OPENAI_BASE_URL:-http://127.0.0.1:7080/v1}
case ${1:-} in
  models) call "$base/models" ;;
  text) call "$base/completions" "{$model\"prompt\": \"Once upon a time\", \"max_tokens\": 32, $sampling}" ;;
  chat) call "$base/chat/completions" "{$model$messages, \"max_completion_tokens\": 32, $sampling}" ;;
  stream) call "$base/chat/completions" "{$model$messages, \"max_completion_tokens\": 32, $sampling, \"stream\": true}" ;;
  response) call "$base/responses" "{$model\"input\": \"Tell me a story.\", \"max_output_tokens\": 32, $sampling}" ;;
  tokens) call "${base%/v1}/tokenize" "{$model\"prompt\": \"Once upon a time\"}" ;;
  -h | --help) usage ;;
  *)
    usage >&2
    exit 2
    ;;
esac
