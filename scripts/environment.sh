# shellcheck shell=bash
# Sourced by scripts/demo and scripts/test, for bash: the checkout's own Python environment, .venv.
#
# Everything is said on stderr; stdout belongs to whoever sources this. Exit status 2: this machine
# lacks something that is not ours to put there, and the line says what.

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
root=$(dirname -- "$here")
venv=$root/.venv
python=$venv/bin/python

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

give_up() {
    say "$*"
    exit 2
}

# What there are wheels of OpenVINO and ONNX Runtime for.
require_supported_system() {
    local os machine libc
    os=$(uname -s)
    [ "$os" = Linux ] || give_up "expected Linux, found $os; use Debian 12+, Raspberry Pi OS or Ubuntu 24.04+, 64-bit"
    # The processor may have 64 bits and the system 32, as older Raspberry Pi images have.
    [ "$(getconf LONG_BIT 2>/dev/null || echo 64)" = 64 ] ||
        give_up "expected a 64-bit system, found a 32-bit one on $(uname -m); install the 64-bit image"
    machine=$(uname -m)
    case $machine in
        x86_64 | aarch64) ;;
        *) give_up "expected x86_64 or aarch64, found $machine; there are no engines for it" ;;
    esac
    # Only glibc answers this.
    libc=$(getconf GNU_LIBC_VERSION 2>/dev/null) ||
        give_up "expected glibc, found another C library (musl?); use Debian 12+, Raspberry Pi OS or Ubuntu 24.04+"
    at_least "${libc#glibc }" 2.28 || give_up "expected glibc 2.28 or newer, found ${libc#glibc }; use Debian 12+, Raspberry Pi OS or Ubuntu 24.04+"
}

# at_least 2.36 2.28
at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]; }

# Become root for one command, where that is possible; `sudo` may ask for a password only when
# somebody sits there and it is worth it.
may_be_root() {
    [ "$(id -u)" = 0 ] && return 0
    command -v sudo >/dev/null || return 1
    sudo -n true 2>/dev/null || { [ "${1:-}" = ask ] && [ -t 0 ] && [ -t 2 ]; }
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -- "$@"; fi
}

missing_packages() {
    local name
    for name in "$@"; do
        dpkg-query -W -f '${db:Status-Status}\n' "$name" 2>/dev/null | grep -qx installed || printf '%s ' "$name"
    done
}

# Install Debian packages; the caller has seen that it may be root.
apt_install() {
    local attempt
    export DEBIAN_FRONTEND=noninteractive
    say "installing by apt: $*"
    for attempt in 1 2 3; do
        if as_root apt-get -q -o DPkg::Lock::Timeout=120 update >&2 &&
            as_root apt-get -q -y -o DPkg::Lock::Timeout=120 install --no-install-recommends "$@" >&2; then
            return 0
        fi
        say "apt-get failed (attempt $attempt of 3)"
        sleep $((attempt * 5))
    done
    return 1
}

# is_python CANDIDATE: whether it runs and is new enough. A name on the PATH may be a version
# manager's stand-in that does not.
is_python() {
    "$1" -c 'import sys; sys.exit(not (sys.version_info >= (3, 11) and sys.maxsize > 2**32))' >/dev/null 2>&1
}

can_make_venv() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }

# Print a Python >= 3.11 that can make an environment; one that cannot only for want of another.
find_python() {
    local name without=
    for name in python3.13 python3.12 python3.11 python3 /usr/bin/python3; do
        is_python "$name" || continue
        if can_make_venv "$name"; then
            printf '%s\n' "$name"
            return 0
        fi
        without=${without:-$name}
    done
    [ -n "$without" ] && printf '%s\n' "$without"
}

make_venv() {
    local base found
    if is_python "$python" && "$python" -m pip --version >/dev/null 2>&1; then
        return 0
    fi
    base=$(find_python) || base=
    if [ -z "$base" ] || ! can_make_venv "$base"; then
        if command -v apt-get >/dev/null && may_be_root ask; then
            apt_install python3 python3-venv || say "python3-venv could not be installed"
            base=$(find_python) || base=
        fi
    fi
    if [ -z "$base" ]; then
        found=$(python3 -c 'import platform; print("found Python", platform.python_version())' 2>/dev/null) || found="found none"
        give_up "expected Python 3.11 or newer, $found; use Debian 12+, Raspberry Pi OS or Ubuntu 24.04+, or put a newer Python on the PATH"
    fi
    can_make_venv "$base" ||
        give_up "$base cannot make environments: its module ensurepip is missing; run: sudo apt install python3-venv"
    say "making $venv with $("$base" --version 2>&1)"
    "$base" -m venv --clear "$venv" >&2 || return
}

# install_project LEVEL: base, demo (also amqtt) or dev (all that tests need). Fast when it is done.
install_project() {
    local level=$1 stamp what=()
    case $level in
        base) what=(-e "${root}[metrics,ui,http]") ;;
        demo) what=(-e "${root}[demo,metrics,ui,http]") ;;
        dev) what=(-e "${root}[demo,metrics,ui,http]" --group "$root/pyproject.toml:dev") ;;
    esac
    # The environment knows the folder where it lies: after a move it is installed again.
    stamp=$(cat -- "$root/pyproject.toml" "$root/scripts/constraints.txt" "$root/scripts/environment.sh" <(printf '%s\n' "$root") | sha256sum | cut -d ' ' -f 1)
    [ "$(cat -- "$venv/.installed-$level" 2>/dev/null)" = "$stamp" ] && return 0
    say "installing edge-agent and what it needs into .venv (about 250 MB; the first time takes a few minutes)"
    local pip=("$python" -m pip --disable-pip-version-check)
    [ -t 2 ] || pip+=(--quiet)
    # 25.1 is the first that knows dependency groups.
    "${pip[@]}" install --upgrade 'pip>=25.1' >&2 || return
    "${pip[@]}" install -c "$root/scripts/constraints.txt" "${what[@]}" >&2 || return
    local each
    for each in base demo dev; do
        printf '%s\n' "$stamp" >"$venv/.installed-$each"
        [ "$each" = "$level" ] && break
    done
}
