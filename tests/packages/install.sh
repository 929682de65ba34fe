#!/usr/bin/env bash
# Installs packages in a fresh Debian 12 as docs/operate/packages.md has it, serves there, upgrades, removes and purges. Takes minutes
# and downloads some 200 MB, so it is run by hand: tests/packages/install.sh --help.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
packages="$repository/build/packages"
mirror=
folder="" model_file=""

usage() {
  cat <<'EOF'
usage: tests/packages/install.sh [options]

Needs root and debootstrap. The new Debian takes this machine's settings for apt, names and certificates; its processes and
mounts end with the script.

  --packages DIR   what deploy/package.sh has made (default build/packages)
  --folder DIR     where the Debian goes; it must not exist, and stays (default: a temporary folder, which is removed)
  --model FILE     take SmolLM2's file from here and do not fetch it by pip
  --mirror URL     of Debian's packages (default: debootstrap's)
EOF
}

fail() {
  echo "install.sh: $*" >&2
  exit 1
}
say() { printf '\n==> [%3d s] %s\n' "$SECONDS" "$*"; }

arguments=("$@")
while (($# > 0)); do
  case $1 in
    -h | --help)
      usage
      exit 0
      ;;
    --packages | --folder | --model | --mirror)
      [[ -n ${2-} ]] || { echo "install.sh: $1 needs a value" >&2 && exit 2; }
      case $1 in
        --packages) packages=$(realpath -e "$2") ;;
        --folder) folder=$(realpath -m "$2") ;;
        --model) model_file=$(realpath -e "$2") ;;
        --mirror) mirror=$2 ;;
      esac
      shift
      ;;
    *)
      echo "install.sh: unknown option '$1'; --help lists them" >&2
      exit 2
      ;;
  esac
  shift
done
((EUID == 0)) || fail "needs root, for debootstrap and chroot"
command -v debootstrap >/dev/null || fail "needs debootstrap: apt-get install debootstrap"
debs=("$packages"/*.deb) wheels=("$packages"/*.whl)
[[ -f ${debs[0]} && -f ${wheels[0]} ]] || fail "$packages has no packages: deploy/package.sh makes them"

# In namespaces of its own, which end all processes and mounts of the new Debian, whatever happens.
if [[ -z ${TANDEM_INSTALL_NAMESPACES-} ]]; then
  TANDEM_INSTALL_NAMESPACES=1 exec unshare --mount --pid --fork --kill-child "${BASH_SOURCE[0]}" "${arguments[@]}"
fi

if [[ -z $folder ]]; then
  folder=$(mktemp -d)
  trap 'umount -l "$root"/proc "$root"/dev 2>/dev/null || true; rm -rf --one-file-system "$folder"' EXIT # They may not be mounted yet.
fi
root="$folder/debian"
[[ ! -e $root ]] || fail "$root exists already"
mkdir -p "$folder"

# inside command...: as root in the new Debian, with what a login there would have. With how=exec in place of this shell.
inside() {
  ${how-} chroot "$root" /usr/bin/env -i HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive \
    PIP_CERT=/etc/machine-certificates.pem ${PIP_INDEX_URL:+"PIP_INDEX_URL=$PIP_INDEX_URL"} "$@"
}

# unit_value SERVICE KEY: of its installed unit.
unit_value() { sed -n "s/^$2=//p" "$root/usr/lib/systemd/system/tandem-$1.service"; }

# start_unit SERVICE: what systemd would start, as the unit's user, without capabilities.
start_unit() {
  local user command
  user=$(unit_value "$1" User)
  read -r -a command <<<"$(unit_value "$1" ExecStart)"
  (
    umask "$(unit_value "$1" UMask)"
    ulimit -n "$(unit_value "$1" LimitNOFILE)"
    how="exec" inside setpriv --reuid="$user" --regid="$user" --init-groups --no-new-privs --bounding-set=-all "${command[@]}"
  ) >"$folder/$1.log" 2>&1 &
}

# wait_for_log SERVICE TEXT
wait_for_log() {
  local tries
  for ((tries = 0; tries < 600; ++tries)); do
    if grep -q "$2" "$folder/$1.log"; then return 0; fi
    sleep 0.2
  done
  cat "$folder/$1.log" >&2
  fail "tandem-$1 did not log '$2'"
}

say "Debian 12 in $root"
debootstrap --variant=minbase bookworm "$root" ${mirror:+"$mirror"} >"$folder/debootstrap.log" 2>&1 || { tail -n 20 "$folder/debootstrap.log" >&2 && fail "debootstrap"; }
cp /etc/resolv.conf /etc/hosts "$root/etc/"
cp /etc/apt/apt.conf.d/99* "$root/etc/apt/apt.conf.d/" 2>/dev/null || true # Proxies and certificates; there may be none.
cp "${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt}" "$root/etc/machine-certificates.pem"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
cp "${debs[0]}" "${wheels[0]}" "$root/srv/"

say "apt-get install ./$(basename "${debs[0]}")"
inside apt-get -qq update
inside sh -c 'apt-get -qq install -y --no-install-recommends /srv/tandem_*.deb python3-venv curl ca-certificates' >"$folder/apt.log" 2>&1 ||
  { tail -n 20 "$folder/apt.log" >&2 && fail "the package cannot be installed"; }
inside dpkg --verify tandem
inside getent passwd tandem
modes=$(inside stat -c '%n %U:%G %a' /etc/tandem /run/tandem /var/lib/tandem /var/lib/tandem/models)
[[ $modes == "/etc/tandem root:tandem 750
/run/tandem tandem:tandem 700
/var/lib/tandem tandem:tandem 750
/var/lib/tandem/models tandem:tandem 755" ]] || fail "owners and modes: $modes"
enabled=$(find "$root/etc/systemd/system" -name 'tandem*')
[[ -z $enabled ]] || fail "the installation has enabled a service: $enabled"

say "a model"
file=SmolLM2-135M-Instruct.Q4_1.gguf
if [[ -n $model_file ]]; then
  install -m 644 "$model_file" "$root/var/lib/tandem/models/$file"
else
  inside TANDEM_MODELS=/var/lib/tandem/models tandem-models smollm2-135m
fi

say "a tenant"
token=$(inside tandem hash-token --generate | tee "$folder/hashed" | sed -n 's/^token: //p')
line=$(sed -n 's/^token_sha256: //p' "$folder/hashed")
[[ -n $token && -n $line ]] || fail "hash-token printed $(cat "$folder/hashed")"
printf 'tenants:\n  - name: first\n    token_sha256: %s\n    admin: true\n' "$line" >>"$root/etc/tandem/router.yaml"
for service in verifier router; do
  inside setpriv --reuid=tandem --regid=tandem --init-groups "tandem-$service" --flags-file "/etc/tandem/$service.flags.yaml" --check-config
done

# serve: what the units start, in a network that has nothing but loopback.
serve() {
  ip link set lo up
  start_unit verifier
  start_unit router
  wait_for_log verifier ": serving "
  wait_for_log router ": ready for requests"
  local answer
  answer=$(inside curl -sS --fail-with-body http://127.0.0.1:7080/v1/chat/completions -H "Authorization: Bearer $token" \
    -d '{"model": "smollm2-135m", "messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 32, "temperature": 0}')
  echo "$answer"
  [[ $answer == *Paris* ]] || fail "expected Paris in the answer"
  [[ $(inside curl -sS -o /dev/null -w '%{http_code}' http://127.0.0.1:7080/v1/models) == 401 ]] || fail "a call without a token was not refused"
  inside tandem servers --endpoint 127.0.0.1:7001 --token "$token"
  inside /srv/client/bin/python -c '
import sys, tandem
with tandem.Client("127.0.0.1:7001", token=sys.argv[1]) as client:
    print(client.generate("Answer:", max_tokens=8, choices=["yes", "no"]).text)' "$token"
  inside curl -sS http://127.0.0.1:9101/metrics | grep '^tandem_router_requests_total'
  local pids
  mapfile -t pids < <(jobs -p)
  kill "${pids[@]}"
  wait "${pids[@]}" || fail "a service ended with status $?: $(tail -n 5 "$folder"/{verifier,router}.log)"
}
export -f serve start_unit unit_value wait_for_log inside fail
export root folder token

say "the Python client"
inside python3 -m venv /srv/client
inside sh -c '/srv/client/bin/pip install --quiet /srv/tandem_client-*.whl'

say "the services"
unshare --net bash -euo pipefail -c serve
for pair in "/var/lib/tandem/router.db 600" "/run/tandem 700"; do
  [[ "$(inside stat -c '%n %a %U' "${pair% *}")" == "$pair tandem" ]] || fail "$(inside stat -c '%n %a %U' "${pair% *}"), expected $pair tandem"
done

say "tandem serve"
# As a user of the machine, who has no part in the service's files.
inside useradd --create-home somebody
cat >"$root/usr/local/bin/try-serve" <<'EOF'
#!/bin/sh
set -eu
TANDEM_MODELS=$HOME/models tandem serve "$1" --port 7080 >serve.log 2>&1 &
for _ in $(seq 600); do
  if grep -q 'Ctrl-C stops it' serve.log; then break; fi
  sleep 0.2
done
cat serve.log
curl -sS --fail-with-body http://127.0.0.1:7080/v1/chat/completions -H 'Authorization: Bearer tandem' \
  -d '{"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 16, "temperature": 0}' | grep Paris
kill -INT $!
wait $!
EOF
chmod 755 "$root/usr/local/bin/try-serve"
inside install -o somebody -g somebody -m 644 "/var/lib/tandem/models/$file" /home/somebody/
unshare --net sh -c "ip link set lo up; chroot '$root' /usr/bin/env -i HOME=/home/somebody PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 \
  setpriv --reuid=somebody --regid=somebody --init-groups sh -c 'cd; try-serve $file'"

say "upgrade, remove, purge"
digest=$(sha256sum "$root/etc/tandem/router.yaml")
inside sh -c 'apt-get -qq install -y --reinstall /srv/tandem_*.deb' >>"$folder/apt.log" 2>&1
[[ $(sha256sum "$root/etc/tandem/router.yaml") == "$digest" ]] || fail "the upgrade has changed router.yaml"
inside apt-get -qq remove -y tandem >>"$folder/apt.log" 2>&1
[[ $(sha256sum "$root/etc/tandem/router.yaml") == "$digest" ]] || fail "removing has changed router.yaml"
[[ -e $root/var/lib/tandem/models/$file && ! -e $root/usr/bin/tandem && ! -e $root/usr/share/tandem ]] || fail "removing left programs, or took models"
inside apt-get -qq purge -y tandem >>"$folder/apt.log" 2>&1
for path in etc/tandem var/lib/tandem run/tandem usr/share/tandem usr/share/doc/tandem; do
  [[ ! -e $root/$path ]] || fail "purging left /$path: $(ls -A "$root/$path")"
done
say "all of it works"
