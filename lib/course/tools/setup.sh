#!/bin/sh
# Makes .venv and installs requirements.txt into it; does nothing where that was done already.
#   setup.sh [PYTHON]           make it, with this Python where one is given
#   setup.sh --which [PYTHON]   print the Python to use: .venv's where there is one
set -eu
cd "$(dirname "$0")/../../.."
venv=.venv/bin/python
stamp=.venv/.ready
static=lib/course/site/_static # what JupyterLab shows as the book does
shown="$static/pictures.js $static/definitions.js $static/definitions.css"

which=no
if [ "${1-}" = --which ]; then which=yes; shift; fi

stop() { printf '%s\n' "$*" >&2; exit 1; }

# A stamp of what was installed, by content: a moved folder or another Python makes it anew.
fingerprint() {
    {
        pwd
        "$venv" -V
        cat requirements.txt pyproject.toml lib/course/site/*.json
        cat lib/course/site/lab/* $shown
    } 2>&1 | cksum
}

# Sets `python` to the first one that is new enough and can make an environment.
find_python() {
    remedy="or say where one is: make lab PYTHON=/path/to/python3"
    old='' bare=''
    for name in "$@"; do
        command -v "$name" >/dev/null 2>&1 || continue
        if ! "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            old="$name is $("$name" -V 2>&1 || true)"
        elif ! "$name" -c 'import venv, ensurepip' 2>/dev/null; then
            bare=$("$name" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
        else
            python=$name
            return
        fi
    done
    if [ -n "$bare" ]; then
        stop "Your $bare lacks the venv module: install it (Debian, Ubuntu: sudo apt install $bare-venv)," \
            "$remedy"
    elif [ -n "$old" ]; then
        stop "The course needs Python 3.11 or later and $old: install a newer one (python.org;" \
            "Debian, Ubuntu: sudo apt install python3.11 python3.11-venv), $remedy"
    fi
    stop "The course needs Python 3.11 or later and found none: install it (python.org;" \
        "Debian, Ubuntu: sudo apt install python3.11 python3.11-venv), $remedy"
}

if [ $which = yes ] && "$venv" -V >/dev/null 2>&1; then
    echo "$venv"
    exit
fi
if [ $which = no ] && [ "$(cat $stamp 2>/dev/null)" = "$(fingerprint)" ]; then exit; fi

# Somebody else's clone is used as it is: its owner alone installs.
if [ $which = no ] && [ ! -w . ]; then
    if [ -f $stamp ] && "$venv" -c 'import jupyterlab, torch' >/dev/null 2>&1; then exit; fi
    stop "$(pwd) cannot be written and has no .venv that is ready: its owner calls \`make lab\` once," \
        "or you clone the course into a folder of yours."
fi

if [ $which = yes ] || ! "$venv" -m pip --version >/dev/null 2>&1; then
    [ -n "${1-}" ] || set -- python3.13 python3.12 python3.11 python3
    find_python "$@"
    if [ $which = yes ]; then
        echo "$python"
        exit
    fi
    echo "Making .venv with $("$python" -V)."
    "$python" -m venv --clear .venv
fi

echo "Installing what requirements.txt names into .venv (once; on Linux PyTorch brings CUDA, several GB)."
[ -t 1 ] && bar=on || bar=off # a bar is for somebody who watches, names of packages for all
"$venv" -m pip install --disable-pip-version-check --progress-bar=$bar -r requirements.txt ||
    stop "pip could not install requirements.txt: its own words stand above, and the next call goes on from here."
share=.venv/share/jupyter
server=.venv/etc/jupyter/jupyter_server_config.d
mkdir -p $share/lab/settings $share/labextensions/many-ranks $server
cp lib/course/site/overrides.json $share/lab/settings/overrides.json
cp lib/course/site/server.json $server/many-ranks.json
cp lib/course/site/lab/* $shown $share/labextensions/many-ranks
fingerprint >$stamp
