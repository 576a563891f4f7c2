#!/bin/sh
# Prints in one line what the build misses on this machine, and how to get it; prints nothing if it can begin.
# The Makefile runs it before the first build: what it finds would otherwise fail after minutes, or by a long trace.
# CARGO and VENV are those of the Makefile.
set -u
export LC_ALL=C

MIN_PYTHON=311 MAX_PYTHON=314
MIN_RUST=188
MIN_MIB=4096

problems=
problem() {
    problems="${problems:+$problems; }$1"
}

# make and the scripts of a venv split such a path.
case $PWD in
*[!A-Za-z0-9/._+@,=~-]*) problem "the path \"$PWD\" has a character other than A-Z a-z 0-9 / . _ + @ , = ~ -: move the checkout" ;;
esac

[ "$(uname -s)" = Linux ] || problem "this is $(uname -s): the agent needs Linux"

for path in . target "$VENV"; do
    if [ -e "$path" ] && [ ! -w "$path" ]; then
        problem "$(id -un) cannot write $path: change its owner, or clone as this user"
        break
    fi
done

free=$(df -Pk . | sed -n '2s/^.* \([0-9][0-9]*\)  *[0-9]*%.*$/\1/p')
if [ ! -e target/release ] && [ -n "$free" ] && [ "$((free / 1024))" -lt "$MIN_MIB" ]; then
    problem "$((free / 1024)) MiB of disk are free, and the build needs $((MIN_MIB / 1024)) GiB: free some, or clone elsewhere"
fi

if ! command -v cc >/dev/null; then
    problem "no C compiler (cc): apt-get install gcc libc6-dev"
else
    # The static hook needs libc.a, which some distributions have in a package of its own.
    folder=$(mktemp -d) || folder=
    if [ -z "$folder" ]; then
        problem "cannot write ${TMPDIR:-/tmp}: free some space there, or set TMPDIR"
    else
        echo 'int main(void) { return 0; }' | cc -static -x c -o "$folder/program" - 2>/dev/null ||
            problem "cc cannot link a static program: apt-get install libc6-dev, or dnf install glibc-static"
        rm -rf "$folder"
    fi
fi

if ! command -v "$CARGO" >/dev/null; then
    problem "no Rust ($CARGO): install rustup from https://rustup.rs, and open a new shell"
elif ! rust=$("$CARGO" --version 2>&1); then
    problem "$CARGO does not run ($(echo "$rust" | sed -n 1p)): rustup toolchain install"
else
    number=$(echo "$rust" | sed -n 's/^cargo \([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
    # shellcheck disable=SC2086 # two words
    set -- ${number:-0 0}
    [ "$(($1 * 100 + $2))" -ge "$MIN_RUST" ] ||
        problem "$rust is older than 1.$((MIN_RUST - 100)): install rustup from https://rustup.rs, and open a new shell"
fi

# An existing venv keeps its Python.
python=python3
[ -x "$VENV/bin/python" ] && python=$VENV/bin/python
if ! command -v "$python" >/dev/null; then
    problem "no Python (python3): apt-get install python3 python3-venv"
else
    version=$("$python" -c 'import sys; print("%d%02d %d.%d" % (sys.version_info[:2] * 2))' 2>/dev/null) || version=
    number=${version%% *} version=${version#* }
    if [ -z "$version" ]; then
        problem "$python does not run: put another python3 first in PATH (and remove $VENV)"
    elif [ "$number" -lt "$MIN_PYTHON" ]; then
        problem "$python is $version, older than 3.11: put a newer python3 first in PATH (and remove $VENV)"
    else
        if [ "$number" -gt "$MAX_PYTHON" ]; then
            echo "make: $python is $version, newer than all that are tested (3.11 to 3.14): if the build fails, put an older python3 first in PATH" >&2
        fi
        if [ "$python" = python3 ] && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
            problem "python3 has no venv module: apt-get install python3-venv"
        fi
        index=$("$python" deploy/package_index.py) ||
            problem "no network to $index: connect, or name a proxy (https_proxy) or another index (PIP_INDEX_URL)"
    fi
fi

[ -z "$problems" ] || echo "cannot build here: $problems"
