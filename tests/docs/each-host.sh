mkdir -p "$HOME_db1/logs"
trap 'rm -r "$HOME_db1/logs"' EXIT
echo '12 ms users SELECT name' >"$HOME_db1/logs/queries.log"
