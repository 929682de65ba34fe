#!/usr/bin/env bash
# What a new user does: clones the repository to a folder with a space in its name, as a user who is not root, runs
# deploy/quickstart.sh as the README has it, and then the commands of the pages for new users. Needs root, to make that user; the
# packages must be installed already (deploy/install.sh). Prints how long the quickstart took to its first and last line.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
readonly user=tandem-first-steps

if ((EUID != 0)); then
  echo "first_steps/run.sh: needs root, to make a user of its own" >&2
  exit 2
fi
id "$user" >/dev/null 2>&1 || useradd --create-home "$user"
parent=$(mktemp -d "/tmp/tandem first steps XXXXXX")
cleanup() {
  pkill -u "$user" || true # All of its processes may have ended.
  rm -rf "$parent"
}
trap cleanup EXIT
clone="$parent/a clone"
git -c safe.directory='*' clone -q "file://$repository" "$clone"
# What install.sh has downloaded already.
mkdir -p "$clone/build/cache"
cp "$repository"/build/cache/xgrammar-*.tar.gz "$clone/build/cache/"
chown -R "$user" "$parent"

as_user() { runuser -u "$user" -- env HOME="/home/$user" CCACHE_DIR="$parent/ccache" bash -c "cd '$clone' && $1"; }

started=$SECONDS
as_user deploy/quickstart.sh
echo "first_steps/run.sh: the quickstart took $((SECONDS - started)) s"
as_user "python3 -B tests/first_steps/pages.py"
