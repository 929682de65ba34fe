#!/usr/bin/env bash
# Fetches a named model by pip, and prints the path of its file: deploy/models.sh --help.
exec python3 -B "$(dirname "${BASH_SOURCE[0]}")/serve/models.py" "$@"
