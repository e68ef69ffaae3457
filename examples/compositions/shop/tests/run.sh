# The test suite: sh tests/run.sh, one line a test, status 1 if one failed.
. lib/login.sh
. lib/total.sh
failed=0
check() {
  if [ "$2" = "$3" ]; then echo "ok - $1"; else echo "not ok - $1: $2 instead of $3" && failed=1; fi
}
check "ana is a user" "$(may ana && echo yes)" yes
check "an empty basket costs nothing" "$(total </dev/null)" 0
check "prices are added" "$(printf '%s\n' 250 199 | total)" 449
exit $failed
