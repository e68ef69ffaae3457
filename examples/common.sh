# Sourced by each `run`: a quine, a directory of the run's own, and a guest. POSIX sh.

set -eu
here=$(cd "$(dirname "$0")" && pwd)
name=${here##*/}
PATH=$here/../../.venv/bin:$PATH # of `make setup`; where there is none, the quine on PATH

# WORK=DIRECTORY, which must be new, keeps what the run leaves: material, tapes, deliverables.
if [ -n "${WORK:-}" ]; then
  mkdir -p "$(dirname "$WORK")"
  mkdir "$WORK"
  work=$(cd "$WORK" && pwd)
else
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM
fi
if [ -f "${QUINE_API_BASE:-}" ]; then # a script or program of the user's; we are about to leave
  export QUINE_API_BASE="$(cd "$(dirname "$QUINE_API_BASE")" && pwd)/${QUINE_API_BASE##*/}"
fi
cd "$work"
export QUINE_DATA_DIR="$work/tapes"

# guest TYPE FILE: this scripted guest, unless the user has named one.
theirs=${QUINE_API_TYPE:-}${QUINE_MODEL_ID:-}
guest() {
  if [ -n "$theirs" ]; then
    echo "$name: the guest is yours: ${QUINE_MODEL_ID:-$QUINE_API_TYPE}" >&2
  else
    export QUINE_API_TYPE="$1" QUINE_API_BASE="$2"
    echo "$name: the guest is scripted, ${2##*/}; for a model set QUINE_MODEL_ID and its key" >&2
  fi
}

wrong() {
  echo "$name: wrong: $*" >&2
  exit 1
}
