#!/bin/sh
# A job in a shell loop: it saves its progress every 100 steps, every 10 during a hint, and at a notice before it exits.
# Usage: checkpoint-loop.sh CHECKPOINT STEPS [SECONDS_PER_STEP]
set -eu
checkpoint=$1 steps=$2 seconds=${3:-1}
notice=${DRA_AGENT_NOTICE_DIR:?is not set: the claim does not request a notice file}/notice.json

phase() { # The file has one field per line.
    sed -n 's/^ *"phase": *"\([a-z]*\)".*/\1/p' "$notice"
}

save() { # By rename, so that a kill leaves the previous checkpoint.
    echo "$step" >"$checkpoint.new"
    mv "$checkpoint.new" "$checkpoint"
}

step=$(cat "$checkpoint" 2>/dev/null || echo 0)
echo "starts at step $step"
while [ "$step" -lt "$steps" ]; do
    sleep "$seconds" # The work of one step.
    step=$((step + 1))
    every=100
    case $(phase) in
    notice)
        save
        echo "saved step $step and exits: the host is being reclaimed"
        exit 0
        ;;
    hint) every=10 ;;
    esac
    [ $((step % every)) -ne 0 ] || save
done
save
echo "finished"
